// What a bench prints of one measurement.
#include "tools/bench/measurement.h"

#include <gtest/gtest.h>

#include <cmath>

#include "platform/json.h"

namespace glmd {
namespace {

Measurement measurement(std::optional<double> bound, double value = 2) {
  return {.bench = "b",
          .varied = {{"threads", int64_t{2}}, {"kv", "f16"}},
          .part = "read",
          .value = value,
          .unit = "GB/s",
          .bound = bound};
}

TEST(Measurement, every_object_has_the_same_members) {
  EXPECT_EQ(line_of(measurement(4), true),
            "{\"bench\":\"b\",\"threads\":2,\"kv\":\"f16\",\"part\":\"read\",\"value\":2,"
            "\"unit\":\"GB/s\",\"bound\":4,\"ratio\":0.5}\n");
  EXPECT_EQ(line_of(measurement({}), true),
            "{\"bench\":\"b\",\"threads\":2,\"kv\":\"f16\",\"part\":\"read\",\"value\":2,"
            "\"unit\":\"GB/s\",\"bound\":null,\"ratio\":null}\n");
}

TEST(Measurement, what_is_no_number_is_null) {
  const Result<Json> json = parse_json(line_of(measurement(0.0, NAN), true), "line");
  ASSERT_TRUE(json.ok()) << json.error().message;
  EXPECT_TRUE(json.value().find("value")->is_null());
  EXPECT_TRUE(json.value().find("ratio")->is_null());
}

TEST(Measurement, a_time_is_compared_with_the_bound_beside_it) {
  EXPECT_DOUBLE_EQ(median_ratio({1, 2, 4}, {2, 4, 8}), 0.5);  // the machine became slower
  EXPECT_DOUBLE_EQ(median_ratio({9, 1, 1}, {10, 2, 4}), 0.5);
}

TEST(Measurement, columns_of_rows_are_below_each_other) {
  const auto column_of = [](const std::string& reader, int64_t size) {
    const Measurement m = {.bench = "reads",
                           .varied = {{"reader", reader}, {"size", size}},
                           .part = "best",
                           .value = 2,
                           .unit = "GB/s"};
    return line_of(m, false).find("best");
  };
  EXPECT_EQ(column_of("io_uring", 20054016), column_of("fio", 1));
}

TEST(Measurement, a_row_without_a_bound_tells_none) {
  EXPECT_NE(line_of(measurement(4), false).find(" of "), std::string::npos);
  EXPECT_EQ(line_of(measurement({}), false).find(" of "), std::string::npos);
}

}  // namespace
}  // namespace glmd
