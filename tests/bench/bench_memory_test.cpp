// A bench that does not fit is refused before it takes anything.
#include "tools/bench/bench_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace glmd {
namespace {

using testing::HasSubstr;

constexpr int64_t gib = int64_t{1} << 30;
const std::vector<MemoryTerm> terms = {{"dense weights", 3 * gib}, {"all experts", 10 * gib}};

TEST(BenchMemory, what_fits_with_the_program_itself_is_allowed) {
  const int64_t program_bytes = int64_t{64} << 20;
  const std::vector<MemoryLimit> enough = {{"MemAvailable", 13 * gib + program_bytes}};
  EXPECT_TRUE(check_memory(terms, enough).ok());
  const std::vector<MemoryLimit> too_little = {{"MemAvailable", 13 * gib + program_bytes - 1}};
  EXPECT_FALSE(check_memory(terms, too_little).ok());
}

TEST(BenchMemory, the_least_limit_counts_and_is_named_with_the_sum) {
  const std::vector<MemoryLimit> limits = {
      {"MemAvailable", 64 * gib}, {"memory.max", 4 * gib}, {"memory.high", 8 * gib}};
  const Result<void> fits = check_memory(terms, limits);
  ASSERT_FALSE(fits.ok());
  EXPECT_EQ(fits.error().kind, ErrorKind::no_memory);
  EXPECT_THAT(fits.error().message, HasSubstr("wanted 14025752576 bytes, got 4294967296"));
  EXPECT_THAT(fits.error().message, HasSubstr("(memory.max)"));
  EXPECT_THAT(fits.error().message, HasSubstr("dense weights         3221225472 bytes"));
  EXPECT_THAT(fits.error().message, HasSubstr("all experts          10737418240 bytes"));
}

TEST(BenchMemory, passes_and_keys_are_terms_of_an_open_model) {
  const ModelSizes sizes = {.dense_bytes = 7,
                            .scratch = {.pass_bytes = 1000, .row_bytes = 100, .logits_bytes = 10}};
  const std::vector<MemoryTerm> model =
      terms_of(sizes, {.rows = 3, .threads = 2, .kv_pool_bytes = 55, .tokens_max = 64});
  ASSERT_EQ(model.size(), 3U);
  EXPECT_EQ(model[0].bytes, 7);
  EXPECT_EQ(model[1].bytes, 55);
  EXPECT_EQ(model[2].bytes, 1310);
}

}  // namespace
}  // namespace glmd
