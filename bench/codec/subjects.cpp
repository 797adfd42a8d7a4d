#include "subjects.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>

#include <tightwire/error_memory.hpp>

namespace bench {
namespace {

using namespace tightwire;

/// Gradients have heavier tails than a Gaussian.
void fill(std::byte* data, std::size_t count, ElementType type) {
  std::uint64_t state = 88172645463325252u;
  for (std::size_t i = 0; i < count; ++i) {
    float x = 0;
    for (int k = 0; k < 4; ++k) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      x += static_cast<float>(state >> 40) * 0x1p-24f - 0.5f;
    }
    x = 1e-3f * x * (1 + x * x);
    const std::uint16_t h = type == ElementType::bf16 ? detail::to_bf16(x) : detail::to_f16(x);
    if (type == ElementType::f32)
      std::memcpy(data + 4 * i, &x, 4);
    else
      std::memcpy(data + 2 * i, &h, 2);
  }
}

enum class Feedback { none, in_place, double_buffered, bf16_in_place, bf16_double_buffered };
constexpr Feedback kFeedbacks[] = {Feedback::none, Feedback::in_place, Feedback::double_buffered,
                                   Feedback::bf16_in_place, Feedback::bf16_double_buffered};
constexpr const char* kFeedbackNames[] = {"", " feedback in place", " feedback to another buffer",
                                          " bf16 feedback in place", " bf16 feedback to another buffer"};
constexpr bool in_bf16(Feedback feedback) {
  return feedback == Feedback::bf16_in_place || feedback == Feedback::bf16_double_buffered;
}
constexpr bool in_place(Feedback feedback) {
  return feedback == Feedback::in_place || feedback == Feedback::bf16_in_place;
}
constexpr std::size_t element_bytes_of(Feedback feedback) {
  return feedback == Feedback::none ? 0 : in_bf16(feedback) ? 2 : 4;
}

/// A Session with rollback writes the other copy of large residuals past the caches.
bool past_cache(Feedback feedback, std::size_t count) {
  return !in_place(feedback) && count * element_bytes_of(feedback) > ErrorMemory::kLargestCached;
}
/// `stream` as in a Session: 0 of a sum.
Residual residual(const Residuals& of, Feedback feedback, std::size_t count, std::uint32_t stream) {
  if (feedback == Feedback::none) return {};
  const std::size_t after = in_place(feedback) ? 0 : 1;
  Residual residual{.past_cache = past_cache(feedback, count)};
  if (in_bf16(feedback)) {
    residual.bf16 = {reinterpret_cast<const std::uint16_t*>(of.bf16[0].bytes()),
                     reinterpret_cast<std::uint16_t*>(of.bf16[after].bytes()), Noise{.seed = 1, .stream = stream}};
  } else {
    residual.before = of.fp32[0].floats();
    residual.after = of.fp32[after].floats();
  }
  return residual;
}
/// Bytes per element of `stages` residuals: read and written, and allocated where what is written was not read.
double residual_bytes(Feedback feedback, int stages) {
  return static_cast<double>(2 * element_bytes_of(feedback)) * stages;
}
double residual_allocated(Feedback feedback, std::size_t count, int stages) {
  const bool allocated = !in_place(feedback) && !past_cache(feedback, count);
  return allocated ? static_cast<double>(element_bytes_of(feedback)) * stages : 0;
}

double wire_bytes(const Coder& coder, const Buffers& buffers) {
  return static_cast<double>(coder.wire_bytes(buffers.count)) / static_cast<double>(buffers.count);
}
/// With feedback in place: codes past the caches, which needs no reading of their lines, and stochastic rounding.
void add_encodings(std::vector<Subject>& subjects, const std::shared_ptr<const Coder>& coder, const Buffers* b,
                   const std::string& name) {
  const double wire = wire_bytes(*coder, *b);
  const double moved = static_cast<double>(element_bytes(b->type)) + wire + residual_bytes(Feedback::in_place, 1);
  subjects.push_back({name + " encode feedback in place, past caches", moved, moved, [=] {
                        coder->encode(b->type, {b->data.bytes(), residual(b->sender, Feedback::in_place, b->count, 1),
                                                b->count, b->wire.bytes(), true});
                      }});
  if (!name.starts_with("int")) return;
  subjects.push_back({name + " encode feedback in place, stochastic", moved, moved + wire, [=] {
                        const Noise noise{.seed = 1, .use = 2, .parameter = 3, .stream = 4};
                        coder->encode(b->type, {b->data.bytes(), residual(b->sender, Feedback::in_place, b->count, 1),
                                                b->count, b->wire.bytes(), false, &noise});
                      }});
}
/// Eight encoded contributions -> their encoded mean, without feedback.
void add_combining_of_eight(std::vector<Subject>& subjects, const std::shared_ptr<const Coder>& coder, const Buffers* b,
                            const std::string& name) {
  constexpr std::size_t kRanks = 8;
  const std::size_t stride = (coder->wire_bytes(b->count) / 64 + 5) * 64;
  const auto received = std::make_shared<Memory>(kRanks * stride, 3200);
  for (std::size_t rank = 0; rank < kRanks; ++rank)
    coder->encode(b->type, {b->scratch.bytes(), {}, b->count, received->bytes() + rank * stride});
  const double wire = wire_bytes(*coder, *b), element = static_cast<double>(element_bytes(b->type));
  const double moved = (kRanks + 1) * wire + element;
  subjects.push_back(
      {name + " combine of eight", moved, moved + wire + element, [=] {
         const std::byte* sources[kRanks];
         for (std::size_t rank = 0; rank < kRanks; ++rank) sources[rank] = received->bytes() + rank * stride;
         coder->combine(b->type, {sources, nullptr, {}, {}, b->count, 8.0f, b->sum.bytes(), b->out.bytes()});
       }});
}

}  // namespace

Buffers::Buffers(std::size_t elements, ElementType element_type)
    : count(elements),
      type(element_type),
      data(4 * count, 0),
      out(4 * count, 320),
      scratch(4 * count, 704),
      sender{{{4 * count, 1088}, {4 * count, 1472}}, {{2 * count, 1280}, {2 * count, 1664}}},
      owner{{{4 * count, 1856}, {4 * count, 2240}}, {{2 * count, 2048}, {2 * count, 2432}}},
      wire(5 * count + 4096, 2624),
      sum(5 * count + 4096, 3392) {
  fill(data.bytes(), count, type);
  fill(scratch.bytes(), count, type);
}

std::vector<Subject> subjects_of(const std::shared_ptr<const Coder>& coder, const Buffers& buffers) {
  const Buffers* b = &buffers;
  const ElementType type = b->type;
  const std::string name = coder->spec().substr(0, coder->spec().find(':'));
  const double element = static_cast<double>(element_bytes(type));
  const double wire = static_cast<double>(coder->wire_bytes(b->count)) / static_cast<double>(b->count);
  // Of its own: what another codec reads as something else may be anything, and NaNs take loops another way.
  const auto received = std::make_shared<Memory>(5 * b->count + 4096, 3008);
  coder->encode(type, {b->scratch.bytes(), {}, b->count, received->bytes()});

  std::vector<Subject> subjects;
  for (const Feedback feedback : kFeedbacks) {
    if (feedback != Feedback::none && coder->lossless(type)) continue;
    const double moved = element + wire + residual_bytes(feedback, 1);
    subjects.push_back({name + " encode" + kFeedbackNames[static_cast<int>(feedback)], moved,
                        moved + wire + residual_allocated(feedback, b->count, 1), [=] {
                          coder->encode(type, {b->data.bytes(), residual(b->sender, feedback, b->count, 1), b->count,
                                               b->wire.bytes()});
                        }});
  }
  if (!coder->lossless(type)) add_encodings(subjects, coder, b, name);
  for (const Feedback feedback : kFeedbacks) {
    if (feedback != Feedback::none && coder->lossless(type)) continue;
    const double moved = 2 * element + 2 * wire + residual_bytes(feedback, 2);
    subjects.push_back({name + " combine" + kFeedbackNames[static_cast<int>(feedback)], moved,
                        moved + wire + residual_allocated(feedback, b->count, 2), [=] {
                          const std::byte* sources[] = {received->bytes(), nullptr};
                          coder->combine(type, {sources, b->data.bytes(), residual(b->sender, feedback, b->count, 1),
                                                residual(b->owner, feedback, b->count, 0), b->count, 2.0f,
                                                b->sum.bytes(), b->data.bytes()});
                        }});
  }
  if (wire <= 2) add_combining_of_eight(subjects, coder, b, name);
  subjects.push_back({name + " decode", element + wire, 2 * element + wire, [=] {
                        coder->decode(type, {received->bytes(), b->count, b->out.bytes()});
                      }});
  return subjects;
}

}  // namespace bench
