#include "platform/time_slice.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace glmd {
namespace {

constexpr uint64_t short_slice_ns = 100'000;  // the kernel's least

// As the kernel has it; Debian 12 has no header that both declares it and agrees with <sched.h>.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0, deadline_ns = 0, period_ns = 0;
};

}  // namespace

void ask_for_short_time_slice() {
  SchedulingAttributes attributes;
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0U) != 0) return;
  if (attributes.policy != 0) return;  // somebody chose another one for us
  attributes.runtime_ns = short_slice_ns;
  ::syscall(SYS_sched_setattr, 0, &attributes, 0U);
}

}  // namespace glmd
