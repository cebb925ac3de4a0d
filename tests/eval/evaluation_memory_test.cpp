// What an evaluation takes: all experts where they have room, fewer where not, never less than
// runs.
#include "tools/eval/evaluation_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/families/families.h"

namespace glmd {
namespace {

using testing::HasSubstr;

class EvaluationMemory : public testing::Test {
 protected:
  Result<MemoryPlan> plan(int64_t budget_bytes, const EvaluationSize& size) const {
    return plan_evaluation(container_, {{"test", budget_bytes}}, size);
  }
  // The largest budget, in steps, that has no room for all experts.
  int64_t tight_budget() const {
    int64_t bytes = plan(ample_bytes, small_).value().total_bytes();
    while (plan(bytes, small_).value().arena_bytes == sizes_.experts_bytes) bytes -= 1 << 16;
    return bytes;
  }
  static constexpr int64_t ample_bytes = int64_t{4} << 30;
  Container container_ = Container::open(GLMD_BINARY_DIR "/share/glmd/models/mini").value();
  ModelSizes sizes_ = model_sizes(container_, false).value();
  const EvaluationSize small_{.context_tokens = 64};
};

TEST_F(EvaluationMemory, all_experts_are_kept_where_they_have_room_and_what_fits_elsewhere) {
  EXPECT_EQ(plan(ample_bytes, small_).value().arena_bytes, sizes_.experts_bytes);
  const int64_t tight = tight_budget();
  const MemoryPlan most = plan(tight, small_).value();
  EXPECT_LE(most.total_bytes(), tight);
  EXPECT_LT(most.arena_bytes, sizes_.experts_bytes);
  EXPECT_GE(most.arena_bytes, sizes_.arena_bytes_min);
}

TEST_F(EvaluationMemory, below_the_floor_the_refusal_is_the_sum) {
  const Result<MemoryPlan> refused = plan(int64_t{1} << 20, small_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::no_memory);
  EXPECT_THAT(refused.error().message, HasSubstr("wanted at least"));
  EXPECT_THAT(refused.error().message, HasSubstr("dense weights"));
}

TEST_F(EvaluationMemory, an_arena_that_was_asked_for_is_taken_or_refused) {
  const int64_t least = sizes_.arena_bytes_min;
  const auto asked = [&](int64_t bytes) {
    return EvaluationSize{.context_tokens = 64, .arena_bytes = bytes};
  };
  EXPECT_EQ(plan(ample_bytes, asked(least)).value().arena_bytes, least);
  EXPECT_EQ(plan(ample_bytes, asked(int64_t{1} << 50)).value().arena_bytes, sizes_.experts_bytes);
  EXPECT_THAT(plan(ample_bytes, asked(least - 1)).error().message,
              HasSubstr(fmt::format("wanted at least {} bytes", least)));
  const Result<MemoryPlan> refused = plan(tight_budget(), asked(sizes_.experts_bytes));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("--arena: wanted "));
}

TEST_F(EvaluationMemory, a_context_beyond_the_models_is_refused_with_both_numbers) {
  const Result<MemoryPlan> refused = plan(ample_bytes, {.context_tokens = sizes_.context_max + 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::usage);
  EXPECT_EQ(refused.error().message,
            fmt::format("context: the model was made for at most {} tokens, got {}",
                        sizes_.context_max, sizes_.context_max + 1));
}

}  // namespace
}  // namespace glmd
