// What a Session saves is all that it goes on from, on as many ranks or on others; and bytes that are no state, or the
// wrong one, change nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include <tightwire/codec.hpp>
#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/residuals.hpp"
#include "support/steps.hpp"

namespace tightwire::testing::session_state {
namespace {

using State = std::vector<std::byte>;

/// A codec of every kind, with what each keeps from step to step.
Model every_kind() {
  return {{"exact", {65}, ElementType::f32, Codec{}},
          {"blocks", {37, 61}, ElementType::f32, Int8{}},
          {"stochastic", {900}, ElementType::bf16, parse_codec("int4:round=stochastic")},
          {"rotated", {70, 30}, ElementType::f32, parse_codec("hadamard:64+int4:block=64")},
          {"chosen", {4000}, ElementType::f32, parse_codec("topk:ratio=0.02+int8:block=64")},
          {"sampled", {5000}, ElementType::f32, parse_codec("topk:ratio=0.05,sampled,warm-up=5")},
          {"drawn", {800}, ElementType::f16, parse_codec("randomk:ratio=0.1")},
          {"matrix", {60, 50}, ElementType::f32, parse_codec("powersgd:rank=2,start=2+int8")},
          {"changing", {70, 50}, ElementType::f32, parse_codec("powersgd:rank=1,rank=3@5")},
          {"following", {80, 50}, ElementType::f32, parse_codec("powersgd:rank=1-8,error=0.3")},
          {"other matrix", {40, 30}, ElementType::bf16, parse_codec("powersgd:rank=3,start=2")}};
}
Model blocks_only() {
  return {{"a", {2000}, ElementType::f32, Int8{}},
          {"b", {37, 61}, ElementType::f32, Int4{}},
          {"c", {700}, ElementType::bf16, Int4{.block = 32}},
          {"exact", {65}, ElementType::f32, Codec{}}};
}

/// States of all ranks after some steps, and what the steps after that give.
struct Outcomes {
  explicit Outcomes(int ranks) : states(static_cast<std::size_t>(ranks)), after(states.size()) {}
  std::vector<State> states, after;
};

void go_on(Session& session, Gradients& gradients, State& into) {
  for (std::uint64_t step = 10; step < 14; ++step) {
    reduce(session, gradients, step);
    if (step == 11)
      session.rollback();
    else
      session.commit();
    const auto bytes = gradients.bytes();
    into.insert(into.end(), bytes.begin(), bytes.end());
  }
  const std::vector<float> all = residuals(session);
  const auto left = std::as_bytes(std::span(all));
  into.insert(into.end(), left.begin(), left.end());
}

Outcomes run(const Model& model, const SessionOptions& options, int ranks, int steps = 5) {
  Outcomes result(ranks);
  run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
    const auto me = static_cast<std::size_t>(transport->rank());
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    for (int step = 0; step < steps; ++step) {
      reduce(*session, gradients, static_cast<std::uint64_t>(step));
      if (step == 1)
        session->rollback();
      else
        session->commit();
    }
    result.states[me] = session->save();
    EXPECT_EQ(session->save(), result.states[me]) << "saving changes something";
    go_on(*session, gradients, result.after[me]);
  });
  return result;
}

std::vector<std::span<const std::byte>> views(const std::vector<State>& states) {
  return {states.begin(), states.end()};
}

/// What residuals still add to the mean of all ranks, by parameter and element. Only for block codecs.
std::vector<std::vector<double>> pending(const std::vector<std::unique_ptr<Session>>& ranks, const Model& model) {
  std::vector<std::vector<double>> total;
  for (const Tensor& tensor : model) total.emplace_back(tensor.count(), 0.0);
  for (const auto& session : ranks) {
    for (ParameterId p = 0; p < model.size(); ++p) {
      const auto sender = session->sender_residual(p);
      for (std::size_t i = 0; i < sender.size(); ++i)
        total[p][i] += static_cast<double>(sender[i]) / static_cast<double>(ranks.size());
    }
    for (BucketId id = 0; id < session->buckets(); ++id) {
      const auto owner = session->owner_residual(id);
      if (owner.empty()) continue;
      for (const Chunk& chunk : session->bucket_plan(id).chunks)
        for (const Slice& slice : chunk.shares[static_cast<std::size_t>(session->rank())].slices) {
          const ParameterId p = session->bucket_parameters(id)[slice.parameter];
          if (model[p].name == "exact") continue;
          for (std::size_t i = 0; i < slice.count; ++i)
            total[p][slice.begin + i] += static_cast<double>(owner[slice.error_at + i]);
        }
    }
  }
  return total;
}

/// Sessions on `ranks` ranks that took up the states of all, in reverse order.
std::vector<std::unique_ptr<Session>> restored(const std::vector<State>& states, const Model& model,
                                               const SessionOptions& options, int ranks) {
  std::vector<std::unique_ptr<Session>> sessions(static_cast<std::size_t>(ranks));
  run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
    auto session = sealed_session(transport, model, options);
    auto all = views(states);
    std::reverse(all.begin(), all.end());
    session->restore(all);
    sessions[static_cast<std::size_t>(transport->rank())] = std::move(session);
  });
  return sessions;
}

void expect_near(const std::vector<std::vector<double>>& actual, const std::vector<std::vector<double>>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0;
  for (std::size_t p = 0; p < actual.size(); ++p)
    for (std::size_t i = 0; i < actual[p].size(); ++i) {
      ASSERT_NEAR(actual[p][i], expected[p][i], 1e-5) << "parameter " << p << " element " << i;
      largest = std::max(largest, std::abs(expected[p][i]));
    }
  EXPECT_GT(largest, 1e-2) << "there was nothing to hand on";
}

TEST(SessionState, GoesOnBitForBit) {
  for (const int ranks : {1, 3}) {
    for (const Algorithm algorithm : kAlgorithms) {
      for (const float momentum : {0.0f, 0.9f}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + to_string(algorithm));
        SessionOptions options = in_pieces(algorithm);
        options.seed = 5;
        options.momentum.factor = momentum;
        options.momentum.optimizer_momentum = 0;
        const Outcomes first = run(every_kind(), options, ranks);
        std::vector<State> after(first.states.size()), fresh(after.size());
        run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
          const auto me = static_cast<std::size_t>(transport->rank());
          const Model model = every_kind();
          const auto session = sealed_session(transport, model, options);
          Gradients gradients(model);
          session->restore(first.states[me]);
          EXPECT_EQ(session->steps(), 5u);
          EXPECT_EQ(session->save(), first.states[me]);
          go_on(*session, gradients, after[me]);
          const auto without = sealed_session(transport, model, options);
          go_on(*without, gradients, fresh[me]);
        });
        EXPECT_EQ(after, first.after);
        EXPECT_NE(fresh, first.after) << "nothing of the state matters";
      }
    }
  }
}

TEST(SessionState, OfOneFactorInTurn) {
  const Model model = {{"m", {60, 50}, ElementType::f32, parse_codec("powersgd:rank=2,one-factor")}};
  for (const int steps : {3, 4}) {  // either side is next
    const Outcomes first = run(model, in_pieces(Algorithm::two_shot), 2, steps);
    std::vector<State> after(2);
    run_all(2, [&](const std::shared_ptr<Transport>& transport) {
      const auto me = static_cast<std::size_t>(transport->rank());
      const auto session = sealed_session(transport, model, in_pieces(Algorithm::two_shot));
      Gradients gradients(model);
      session->restore(first.states[me]);
      go_on(*session, gradients, after[me]);
    });
    EXPECT_EQ(after, first.after) << steps;
  }
}

/// On fewer ranks, on more, in other buckets, by another algorithm: what residuals still add to the mean stays.
TEST(SessionState, OtherRanksAndOtherBucketsLoseNothing) {
  const Model model = blocks_only();
  const SessionOptions options = in_pieces(Algorithm::two_shot);
  const Outcomes saved = run(model, options, 4);
  const auto before = pending(restored(saved.states, model, options, 4), model);
  SessionOptions one_bucket = options, one_shot = options;
  one_bucket.bucket_bytes = 1 << 20;
  one_shot.plan.algorithm = Algorithm::one_shot;
  for (const int ranks : {1, 2, 3, 4, 6})
    for (const SessionOptions& other : {options, one_bucket, one_shot}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks");
      expect_near(pending(restored(saved.states, model, other, ranks), model), before);
    }
}

TEST(SessionState, OfASumIsHandedOnUnscaled) {
  const Model model = blocks_only();
  SessionOptions options = in_pieces(Algorithm::two_shot);
  options.average = false;
  const Outcomes saved = run(model, options, 2);
  const auto total = [&](int ranks) {
    const auto sessions = restored(saved.states, model, options, ranks);
    double all = 0;
    for (const auto& session : sessions)
      for (ParameterId p = 0; p < model.size(); ++p)
        for (const float x : session->sender_residual(p)) all += static_cast<double>(x);
    return all;
  };
  const double on_two = total(2);
  EXPECT_NE(on_two, 0);
  EXPECT_NEAR(total(1), on_two, 1e-3);
  EXPECT_NEAR(total(3), on_two, 1e-3);
}

/// Of a larger rank, the leading columns go on; of a smaller one, columns are added.
TEST(SessionState, FactorsOfAnotherRank) {
  const auto with_rank = [](int rank) {
    return Model{{"m", {60, 50}, ElementType::f32, parse_codec("powersgd:rank=" + std::to_string(rank))}};
  };
  const SessionOptions options = in_pieces(Algorithm::two_shot);
  // A gradient of rank 2, the same every step: who has its directions already sends it at once.
  const auto error_after_one_step = [&](int from, int to) {
    std::vector<State> states(2);
    double error = 0;
    run_all(2, [&](const std::shared_ptr<Transport>& transport) {
      const auto me = static_cast<std::size_t>(transport->rank());
      const auto fill = [](Gradients& gradients) {
        gradients.fill([](std::size_t, std::size_t i) {
          const auto row = static_cast<double>(i / 50), column = static_cast<double>(i % 50);
          return static_cast<float>(std::sin(row) * std::cos(3 * column) + 0.5 * std::cos(2 * row) * std::sin(column));
        });
      };
      const Model after = with_rank(to);
      if (from != 0) {
        const Model before = with_rank(from);
        Gradients gradients(before);
        const auto session = sealed_session(transport, before, options);
        for (int step = 0; step < 4; ++step) {
          fill(gradients);
          session->all_reduce(gradients.pointers());
          session->commit();
        }
        states[me] = session->save();
      }
      Gradients gradients(after);
      const auto session = sealed_session(transport, after, options);
      if (from != 0) session->restore(states[me]);
      fill(gradients);
      const std::vector<float> wanted = gradients.values(0);
      session->all_reduce(gradients.pointers());
      const std::vector<float> got = gradients.values(0);
      double squares = 0;
      for (std::size_t i = 0; i < got.size(); ++i) squares += std::pow(static_cast<double>(got[i] - wanted[i]), 2);
      if (me == 0) error = std::sqrt(squares / static_cast<double>(got.size()));
    });
    return error;
  };
  EXPECT_LT(error_after_one_step(4, 2), 1e-4);
  EXPECT_LT(error_after_one_step(2, 3), 1e-4);
  EXPECT_GT(error_after_one_step(0, 1), 1e-2);
}

/// Any byte may be wrong, any number of them missing: it is an error, and what was there before goes on.
TEST(SessionState, DamagedBytesChangeNothing) {
  const Model model = {{"a", {40}, ElementType::f32, Int8{.block = 16}}, {"m", {9, 8}, ElementType::f32, PowerSgd{1}}};
  run_all(1, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model);
    Gradients gradients(model);
    reduce(*session, gradients, 1);
    session->commit();
    const State good = session->save();
    const auto refused = [&](const State& state) {
      try {
        session->restore(state);
        return false;
      } catch (const Error& error) {
        return error.code() == Errc::corrupt || error.code() == Errc::mismatch;
      }
    };
    for (std::size_t i = 0; i < good.size(); ++i) {
      State bad = good;
      bad[i] ^= std::byte{0x10};
      ASSERT_TRUE(refused(bad)) << "byte " << i;
      ASSERT_TRUE(refused({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(i)})) << i << " bytes";
    }
    // Sound by its checksum, and wrong all the same.
    for (std::size_t i = 0; i + 8 < good.size(); ++i) {
      state::Writer writer;
      State bad(good.begin(), good.end() - 8);
      bad[i] ^= std::byte{0x81};
      writer.put(std::span<const std::byte>(bad));
      try {
        session->restore(writer.finish());
      } catch (const Error&) {
        ASSERT_EQ(session->save(), good) << "byte " << i;
      }
      session->restore(good);
    }
    EXPECT_EQ(session->save(), good);
  });
}

/// The errors of all ranks in `restore`, by rank.
std::vector<std::string> errors(int ranks, const Model& model, const SessionOptions& options,
                                const std::function<void(Session&)>& restore) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, options);
    try {
      restore(*session);
    } catch (const Error& error) {
      texts[static_cast<std::size_t>(transport->rank())] = error.what();
    }
    for (ParameterId p = 0; p < model.size(); ++p)
      for (const float x : session->sender_residual(p)) EXPECT_EQ(x, 0.0f);
    EXPECT_EQ(session->steps(), 0u);
  });
  return texts;
}
::testing::AssertionResult all_say(const std::vector<std::string>& texts, const std::string& what) {
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    if (texts[rank].find(what) == std::string::npos)
      return ::testing::AssertionFailure() << "rank " << rank << " says: " << texts[rank];
  return ::testing::AssertionSuccess();
}

TEST(SessionState, TheWrongStateIsRefusedOnEveryRank) {
  const Model model = blocks_only();
  const SessionOptions options = in_pieces(Algorithm::two_shot);
  const Outcomes saved = run(model, options, 2), later = run(model, options, 2, 6);
  const auto me = [](const Session& session) { return static_cast<std::size_t>(session.rank()); };

  // Of the other rank; of another number of ranks; not of all.
  EXPECT_TRUE(all_say(errors(2, model, options, [&](Session& s) { s.restore(saved.states[1 - me(s)]); }),
                      "give the states of all"));
  EXPECT_TRUE(all_say(errors(1, model, options, [&](Session& s) { s.restore(saved.states[0]); }),
                      "the state is of rank 0 of 2, and this is rank 0 of 1"));
  const std::vector<State> twice = {saved.states[0], saved.states[0]};
  EXPECT_TRUE(
      all_say(errors(2, model, options, [&](Session& s) { s.restore(views(twice)); }), "every rank's is needed, once"));
  const std::vector<State> mixed = {saved.states[0], later.states[1]};
  EXPECT_TRUE(all_say(errors(2, model, options, [&](Session& s) { s.restore(views(mixed)); }),
                      "rank 0 was saved after 5 steps and rank 1 after 6"));
  EXPECT_TRUE(all_say(errors(2, model, options, [&](Session& s) { s.restore(mixed[me(s)]); }),
                      "restores the state of another step"));
  // One rank alone is in error; the other hears of it.
  const auto one = errors(2, model, options, [&](Session& s) {
    s.restore(me(s) == 1 ? std::span<const std::byte>{} : std::span<const std::byte>(saved.states[0]));
  });
  EXPECT_NE(one[0].find("rank 1 could not"), std::string::npos) << one[0];
  EXPECT_NE(one[1].find("state:"), std::string::npos) << one[1];

  // Of another model.
  Model renamed = model, resized = model, exact = model;
  renamed[1].name = "z";
  resized[1].shape = {5};
  exact[0].codec = Codec{};
  Model rotated = model;
  rotated[0].codec = parse_codec("hadamard:64+int8:block=64");
  const auto own = [&](Session& s) { s.restore(saved.states[me(s)]); };
  EXPECT_TRUE(all_say(errors(2, renamed, options, own), "has a parameter \"b\", which this Session has not"));
  EXPECT_TRUE(all_say(errors(2, resized, options, own), "\"b\" has 2257 elements, and in this Session 5"));
  EXPECT_TRUE(all_say(errors(2, exact, options, own), "\"a\", which has none in this Session and would lose it"));
  EXPECT_TRUE(all_say(errors(2, rotated, options, own),
                      "residuals of \"a\" are under no rotation, and in this Session under hadamard:64"));
  SessionOptions other_buckets = options;
  other_buckets.bucket_bytes = 1 << 20;
  EXPECT_TRUE(all_say(errors(2, model, other_buckets, own), "owned other elements when it was saved"));
}

/// As many steps, on the same ranks, of the same parameters; and yet they are of two runs.
TEST(SessionState, FilesOfTwoRunsDoNotMix) {
  const Model model = blocks_only();
  const SessionOptions options = in_pieces(Algorithm::two_shot);
  const Outcomes one = run(model, options, 2), other = run(model, options, 2);
  const auto me = [](const Session& session) { return static_cast<std::size_t>(session.rank()); };
  const std::vector<State> mixed = {one.states[0], other.states[1]};
  EXPECT_TRUE(all_say(errors(2, model, options, [&](Session& s) { s.restore(views(mixed)); }),
                      "rank 0 and rank 1 were saved by different runs"));
  EXPECT_TRUE(all_say(errors(2, model, options, [&](Session& s) { s.restore(mixed[me(s)]); }),
                      "restores the state of another step, or of another run"));
  // A Session that took up a state is of its run, and what it saves goes with what others of the run have saved.
  std::vector<State> again(2);
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, options);
    session->restore(one.states[me(*session)]);
    again[me(*session)] = session->save();
  });
  EXPECT_EQ(again, one.states);
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    sealed_session(transport, model, options)->restore(views({one.states[0], again[1]}));
  });
}

/// What all ranks have alike is compared, for every file and not for the first alone.
TEST(SessionState, FilesWithOtherFactorsDoNotMix) {
  const Model model = {{"m", {60, 50}, ElementType::f32, parse_codec("powersgd:rank=2")}};
  const SessionOptions options = in_pieces(Algorithm::two_shot);
  const Outcomes one = run(model, options, 2);
  // Behind the last bytes of a factor are a record of 24 bytes, of the turn, and the check sum.
  State bad = one.states[1];
  bad[bad.size() - 34] ^= std::byte{1};
  bad.resize(bad.size() - 8);
  state::Writer writer;
  writer.put(std::span<const std::byte>(bad));
  bad = writer.finish();
  const auto me = [](const Session& session) { return static_cast<std::size_t>(session.rank()); };
  const std::vector<State> mixed = {one.states[0], bad};
  EXPECT_TRUE(all_say(errors(2, model, options, [&](Session& s) { s.restore(views(mixed)); }),
                      "rank 0 and rank 1 have saved other factors"));
  EXPECT_TRUE(all_say(errors(2, model, options, [&](Session& s) { s.restore(mixed[me(s)]); }),
                      "restores the state of another step, or of another run"));
}

TEST(SessionState, OnlyBetweenSteps) {
  const Model model = blocks_only();
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model);
    Gradients gradients(model);
    const State at_first = session->save();
    reduce(*session, gradients, 1);
    EXPECT_THROW(static_cast<void>(session->save()), Error);
    EXPECT_THROW(session->restore(at_first), Error);
    session->commit();
    EXPECT_NE(session->save(), at_first);
    session->restore(at_first);
    EXPECT_EQ(session->save(), at_first);
    const auto open = open_session(transport, model);
    EXPECT_THROW(static_cast<void>(open->save()), Error);
  });
}

}  // namespace
}  // namespace tightwire::testing::session_state
