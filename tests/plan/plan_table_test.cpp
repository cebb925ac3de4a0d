#include "plan/plan_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace glmd {
namespace {

using testing::HasSubstr;
using testing::Not;

// What a daemon answers: no measurement yet.
Json plan_of_glm52() {
  return parse_json(R"({"hardware":{"cores":8,"threads":8},"model":{"path":"/srv/m"},
      "memory":{"budget_bytes":1000,"budget_source":"--memory","floor_bytes":500},
      "token":{"hit_rate":0.5,"disk_bytes":6e9,"memory_bytes":27e9,"head_bytes":0,
               "team_tasks":1000}})",
                    "plan")
      .value();
}

Json with_measured(Json plan, const char* measured) {
  plan.set("measured", parse_json(measured, "measured").value());
  add_expected(plan);
  return plan;
}

TEST(PlanTable, what_is_not_measured_is_said_to_be_so) {
  const std::string text = plan_table(plan_of_glm52());
  EXPECT_THAT(text, HasSubstr("measured         experts from disk not measured yet, memory not "
                              "measured yet\n"));
  EXPECT_THAT(text, HasSubstr("expected         not known before it is measured: hit rate 0.50"));
  EXPECT_THAT(text, HasSubstr("floor "));
  const Json half = with_measured(plan_of_glm52(), R"({"memory_bytes_per_s":90e9})");
  EXPECT_EQ(half.find("expected"), nullptr);
  EXPECT_THAT(plan_table(half), HasSubstr("from disk not measured yet, memory 90.0 GB/s\n"));
}

TEST(PlanTable, the_expected_speed_has_two_digits_and_its_bound) {
  const char* measured = R"({"disk_bytes_per_s":7e9,"memory_bytes_per_s":90e9,"team_task_s":1e-6})";
  const Json plan = with_measured(plan_of_glm52(), measured);
  EXPECT_THAT(plan_table(plan), HasSubstr("up to 1.2 tokens/s, bound by disk (0.86 if one waits "
                                          "for the other): hit rate 0.50, 6.000 GB of disk"));
}

TEST(PlanTable, where_nothing_is_read_the_disk_need_not_be_measured) {
  Json plan = plan_of_glm52();
  plan.set("token", parse_json(R"({"hit_rate":1,"disk_bytes":0,"memory_bytes":27e9})", "").value());
  EXPECT_THAT(plan_table(with_measured(plan, R"({"memory_bytes_per_s":90e9})")),
              HasSubstr("up to 3.3 tokens/s, bound by memory: hit rate 1.00"));
}

TEST(PlanTable, no_more_is_told_of_a_small_model_than_is_known) {
  Json plan = plan_of_glm52();
  plan.set("token", parse_json(R"({"hit_rate":1,"disk_bytes":0,"memory_bytes":3e6})", "").value());
  EXPECT_THAT(plan_table(with_measured(plan, R"({"memory_bytes_per_s":30e9})")),
              HasSubstr("expected         over 500 tokens/s, bound by memory: "));
}

TEST(PlanTable, members_of_another_kind_are_no_matter) {
  for (const char* text : {"{}", "[]", R"({"hardware":7,"model":[],"memory":"x","token":null})",
                           R"({"token":{"disk_bytes":"x"},"measured":[]})"}) {
    Json plan = parse_json(text, "plan").value();
    add_expected(plan);
    EXPECT_THAT(plan_table(plan), Not(HasSubstr("tokens/s"))) << text;
  }
}

}  // namespace
}  // namespace glmd
