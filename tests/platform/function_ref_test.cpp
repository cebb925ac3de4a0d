#include "platform/function_ref.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

namespace glmd {
namespace {

int call_with_4(FunctionRef<int(int)> function) {
  return function(4);
}

TEST(FunctionRef, it_calls_the_object_itself_and_no_copy) {
  int sum = 0;
  auto add = [&sum, calls = 0](int value) mutable {
    sum += value;
    return ++calls;
  };
  EXPECT_EQ(call_with_4(add), 1);
  EXPECT_EQ(call_with_4(add), 2) << "the lambda's own state was changed";
  EXPECT_EQ(sum, 8);
}

TEST(FunctionRef, it_takes_lambdas_written_in_place_constant_objects_and_copies_of_itself) {
  EXPECT_EQ(call_with_4([](int value) { return value * 2; }), 8);
  const std::negate<int> negate;
  const FunctionRef<int(int)> first = negate;
  const FunctionRef<int(int)> second = first;
  EXPECT_EQ(call_with_4(second), -4);
}

TEST(FunctionRef, references_and_values_that_only_move_pass_through) {
  const auto take = [](int& count, std::unique_ptr<int> value) { count += *value; };
  int count = 1;
  FunctionRef<void(int&, std::unique_ptr<int>)>{take}(count, std::make_unique<int>(2));
  EXPECT_EQ(count, 3);
}

TEST(FunctionRef, without_anything_to_call_it_is_false) {
  EXPECT_FALSE(FunctionRef<void()>());
  const auto nothing = [] {};
  EXPECT_TRUE(FunctionRef<void()>(nothing));
}

}  // namespace
}  // namespace glmd
