#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include <tightwire/testing/calls.hpp>

namespace tightwire::testing {

/// residual == input + old residual - decoded, bit for bit; in place or from one buffer to another.
inline void check_residual(const Subject& subject) {
  const auto block = static_cast<std::size_t>(subject.block);
  for (const std::size_t count : {std::size_t{1}, block - 1, 2 * block, 2 * block + 5}) {
    const std::vector<float> before = Random(count).gaussian(count, 0.02);
    for (const ElementType type : kElementTypes) {
      const std::vector<float> x = from_buffer(type, to_buffer(type, Random(count + 1).gaussian(count)));
      const std::vector<float> total = sum(x, before);
      for (const host::Level level : levels()) {
        SCOPED_TRACE(std::string(to_string(type)) + " " + std::string(to_string(level)) + " " + std::to_string(count));
        const auto coder = subject.coder(level);
        const std::vector<float> kept = before;
        const EncodeOutput encoded = encode(*coder, type, x, before);
        const std::vector<float> decoded = decode(*coder, encoded.wire, count);
        ASSERT_TRUE(same_bits(encoded.residual, residual_after(total, decoded, before)));
        ASSERT_TRUE(same_bits(before, kept)) << "the old residual was changed";
        ASSERT_TRUE(same_bytes(encoded.wire, encode(*coder, ElementType::f32, total).wire));

        std::vector<float> in_place = before;
        const std::vector<std::byte> data = to_buffer(type, x);
        std::vector<std::byte> wire(encoded.wire.size());
        coder->encode(type, {data.data(), {in_place.data(), in_place.data()}, count, wire.data()});
        ASSERT_TRUE(same_bits(in_place, encoded.residual));
        ASSERT_TRUE(same_bytes(wire, encoded.wire));
        ASSERT_TRUE(same_bytes(data, to_buffer(type, x))) << "the gradient was changed";
      }
      if (subject.coder()->lossless(type)) {
        const std::vector<float> zero(count, 0.0f);
        ASSERT_TRUE(same_bits(encode(*subject.coder(), type, x, zero).residual, zero)) << "lossless, says the codec";
      }
    }
  }
}

/// The error memory is used: the second step of the same input differs from the first, and the two together carry more.
inline void check_two_steps(const Subject& subject) {
  const auto coder = subject.coder();
  const std::size_t count = 20 * static_cast<std::size_t>(subject.block);
  const std::vector<float> x = Random(44).gaussian(count);
  const std::vector<float> zero(count, 0.0f);
  const EncodeOutput first = encode(*coder, ElementType::f32, x, zero);
  const EncodeOutput second = encode(*coder, ElementType::f32, x, first.residual);
  const EncodeOutput without = encode(*coder, ElementType::f32, x);
  EXPECT_TRUE(same_bytes(first.wire, without.wire));
  if (coder->lossless(ElementType::f32)) {
    EXPECT_TRUE(same_bytes(second.wire, without.wire));
    return;
  }
  EXPECT_FALSE(same_bytes(second.wire, without.wire)) << "feedback changes nothing";
  const std::vector<float> sent = sum(decode(*coder, first.wire, count), decode(*coder, second.wire, count));
  const std::vector<float> sent_without = sum(decode(*coder, without.wire, count), decode(*coder, without.wire, count));
  const std::vector<float> wanted = sum(x, x);
  EXPECT_LT(nmse(wanted, sent), (subject.keeps_extremes ? 0.5 : 0.75) * nmse(wanted, sent_without));
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_NEAR(wanted[i], sent[i] + second.residual[i], 1e-6 * (1 + std::abs(wanted[i]))) << "element " << i;
}

/// combine == decode, add in rank order, divide, add the residual, encode, whatever our place among the ranks; and what
/// it puts out is what everyone decodes.
inline void check_combine(const Subject& subject) {
  const auto reference = subject.reference();
  std::size_t turn = 0;
  for (const std::size_t ranks : {1u, 2u, 3u, 7u, 8u}) {
    for (const ElementType type : kElementTypes) {
      const std::size_t count = static_cast<std::size_t>(subject.block) * (1 + ranks % 3) + ranks * 5;
      CombineInput input;
      input.type = type;
      input.contributions = contributions(ranks, count, type);
      std::vector<std::vector<std::byte>> wires;
      std::vector<std::vector<float>> decoded;
      for (const std::vector<float>& x : input.contributions) {
        wires.push_back(encode(*subject.coder(), type, x).wire);
        decoded.push_back(reference->decode(wires.back(), count));
      }
      for (input.own = 0; input.own < ranks; ++input.own) {
        for (const float divisor : {1.0f, 2.0f, 3.0f, 7.0f}) {
          for (unsigned mode = 0; mode < 8; ++mode) {
            input.divisor = divisor;
            input.encoded = (mode & 1u) == 0;
            input.sender.reset(), input.owner.reset();
            if ((mode & 2u) != 0) input.sender = Random(mode).gaussian(count, 0.05);
            if ((mode & 4u) != 0 && input.encoded) input.owner = Random(mode + 9).gaussian(count, 0.05);
            const host::Level level = levels()[turn++ % levels().size()];
            SCOPED_TRACE(std::to_string(ranks) + " ranks, own " + std::to_string(input.own) + ", " +
                         std::string(to_string(type)) + ", divisor " + std::to_string(divisor) + ", mode " +
                         std::to_string(mode) + ", " + std::string(to_string(level)));
            const auto coder = subject.coder(level);
            const CombineOutput actual = combine(*coder, input, wires);
            ASSERT_NO_FATAL_FAILURE(expect_combined(actual, reference_combine(*reference, input, decoded)));
            if (!input.encoded) continue;
            ASSERT_TRUE(same_bits(decode(*coder, type, actual.wire, count), actual.out));
          }
        }
      }
    }
  }
}

/// The sum may replace our contribution, and the residuals may be updated in place.
inline void check_combine_in_place(const Subject& subject) {
  const std::size_t count = 2 * static_cast<std::size_t>(subject.block) + 9;
  for (const ElementType type : kElementTypes) {
    for (const host::Level level : levels()) {
      const auto coder = subject.coder(level);
      CombineInput input;
      input.type = type;
      input.contributions = contributions(3, count, type);
      input.own = 1;
      input.divisor = 3;
      input.sender = Random(1).gaussian(count, 0.05);
      input.owner = Random(2).gaussian(count, 0.05);
      std::vector<std::vector<std::byte>> wires;
      for (const std::vector<float>& x : input.contributions) wires.push_back(encode(*coder, type, x).wire);
      const CombineOutput expected = combine(*coder, input, wires);

      std::vector<std::byte> buffer = to_buffer(type, input.contributions[1]);
      std::vector<float> sender = *input.sender, owner = *input.owner;
      std::vector<std::byte> wire(expected.wire.size());
      const std::byte* sources[3] = {wires[0].data(), nullptr, wires[2].data()};
      coder->combine(type, {sources,
                            buffer.data(),
                            {sender.data(), sender.data()},
                            {owner.data(), owner.data()},
                            count,
                            3,
                            wire.data(),
                            buffer.data()});
      ASSERT_TRUE(same_bytes(wire, expected.wire));
      ASSERT_TRUE(same_bytes(buffer, to_buffer(type, expected.out)));
      ASSERT_TRUE(same_bits(sender, expected.sender));
      ASSERT_TRUE(same_bits(owner, expected.owner));
    }
  }
}

/// Nothing is lost over 100 steps: mean of (gradient + old residuals) = output + mean of new residuals, the rounding of
/// the output to a 16-bit buffer included.
inline void check_conservation(const Subject& subject) {
  constexpr std::size_t kRanks = 3;
  const auto coder = subject.coder();
  const std::size_t count = 2 * static_cast<std::size_t>(subject.block) + 11;
  for (const ElementType type : kElementTypes) {
    std::vector<std::vector<float>> senders(kRanks, std::vector<float>(count, 0.0f));
    std::vector<float> owner(count, 0.0f);
    std::vector<double> gradients(count, 0.0), outputs(count, 0.0);
    for (std::size_t step = 0; step < 100; ++step) {
      CombineInput input;
      input.type = type;
      input.own = step % kRanks;
      input.divisor = kRanks;
      input.owner = owner;
      input.sender = senders[input.own];
      std::vector<std::vector<std::byte>> wires(kRanks);
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        const std::vector<float> x = Random(step * kRanks + rank).gaussian(count);
        input.contributions.push_back(from_buffer(type, to_buffer(type, x)));
        for (std::size_t i = 0; i < count; ++i)
          gradients[i] += static_cast<double>(input.contributions[rank][i]) / kRanks;
        if (rank == input.own) continue;
        EncodeOutput encoded = encode(*coder, type, input.contributions[rank], senders[rank]);
        wires[rank] = std::move(encoded.wire);
        senders[rank] = std::move(encoded.residual);
      }
      CombineOutput output = combine(*coder, input, wires);
      senders[input.own] = std::move(output.sender);
      owner = std::move(output.owner);
      for (std::size_t i = 0; i < count; ++i) {
        outputs[i] += static_cast<double>(output.out[i]);
        double residual = static_cast<double>(owner[i]);
        for (const std::vector<float>& sender : senders) residual += static_cast<double>(sender[i]) / kRanks;
        ASSERT_NEAR(gradients[i], outputs[i] + residual, 2e-6 * static_cast<double>(step + 1))
            << to_string(type) << " element " << i << " in step " << step;
      }
    }
  }
}

/// A sum of 16-bit gradients beyond the range of their type, and one below it before division: both means come out.
inline void check_half_precision_mean(const Subject& subject) {
  const auto coder = subject.coder();
  const std::size_t count = static_cast<std::size_t>(subject.block) + 1;
  const auto mean_of = [&](ElementType type, std::size_t ranks, float value) {
    CombineInput input;
    input.type = type;
    input.contributions.assign(ranks, std::vector<float>(count, value));
    input.divisor = static_cast<float>(ranks);
    std::vector<std::vector<std::byte>> wires;
    for (const std::vector<float>& x : input.contributions) wires.push_back(encode(*coder, type, x).wire);
    return combine(*coder, input, wires).out;
  };
  const auto tolerance = [&](double value, double unit) {
    // Once in the contribution, once in the sum, and the buffer's own rounding.
    const double bound = subject.error_bound(value, value);
    return 2.1 * (std::isfinite(bound) ? bound : value * 0.02) + unit;
  };
  for (const float x : mean_of(ElementType::f16, 4, 40000.0f)) ASSERT_NEAR(x, 40000.0, tolerance(40000.0, 32.0));
  for (const float x : mean_of(ElementType::f16, 8, 0x1p-24f)) ASSERT_EQ(x, 0x1p-24f);
  for (const float x : mean_of(ElementType::bf16, 8, 0x1p-20f)) ASSERT_NEAR(x, 0x1p-20, tolerance(0x1p-20, 0x1p-28));
}

/// Hints where to leave bytes do not change them, in buffers that are aligned and in such that are not.
inline void check_hints(const Subject& subject) {
  const std::size_t count = 3 * static_cast<std::size_t>(subject.block) + 7;
  const std::vector<float> x = Random(61).gaussian(count), before = Random(62).gaussian(count, 0.01);
  for (const host::Level level : levels()) {
    const auto coder = subject.coder(level);
    const std::size_t bytes = coder->wire_bytes(count);
    for (const ElementType type : kElementTypes) {
      const std::vector<std::byte> data = to_buffer(type, x);
      const auto run = [&](bool hint, std::size_t shift) {
        const auto start = [shift](std::vector<std::byte>& memory, std::size_t size) {
          memory.assign(size + 128, std::byte{0xa5});
          return memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64 + shift;
        };
        std::vector<std::byte> memory[6];
        std::byte* const wire = start(memory[0], bytes);
        std::byte* const sum = start(memory[1], bytes);
        std::byte* const out = start(memory[2], data.size());
        std::byte* const decoded = start(memory[3], data.size());
        auto* const sender = reinterpret_cast<float*>(start(memory[4], count * sizeof(float)));
        auto* const owner = reinterpret_cast<float*>(start(memory[5], count * sizeof(float)));
        coder->encode(type, {data.data(), {before.data(), sender, hint}, count, wire, hint});
        const std::vector<float> sent(sender, sender + count);
        const std::byte* sources[] = {wire, nullptr};
        coder->combine(type, {sources,
                              data.data(),
                              {before.data(), sender, hint},
                              {before.data(), owner, hint},
                              count,
                              2.0f,
                              sum,
                              out,
                              hint});
        coder->decode(type, {sum, count, decoded, hint});
        std::vector<std::byte> all(wire, wire + bytes);
        all.insert(all.end(), sum, sum + bytes);
        for (const std::byte* part : {out, decoded}) all.insert(all.end(), part, part + data.size());
        for (const float* part : {sent.data(), static_cast<const float*>(sender), static_cast<const float*>(owner)}) {
          const auto* from = reinterpret_cast<const std::byte*>(part);
          all.insert(all.end(), from, from + count * sizeof(float));
        }
        return all;
      };
      const std::vector<std::byte> expected = run(false, 0);
      for (const std::size_t shift : {0u, 16u, 20u})
        EXPECT_TRUE(same_bytes(run(true, shift), expected))
            << to_string(type) << " " << host::to_string(level) << " shifted by " << shift;
    }
  }
}

}  // namespace tightwire::testing
