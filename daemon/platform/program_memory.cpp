#include "platform/program_memory.h"

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

namespace glmd {
namespace {

int lock_object(dl_phdr_info* object, size_t, void* is_all_locked) {
  const auto page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0) continue;
    const uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
    const uintptr_t aligned = begin / page_bytes * page_bytes;
    const size_t bytes = begin + segment.p_memsz - aligned;
    if (::mlock(reinterpret_cast<const void*>(aligned), bytes) != 0) {
      *static_cast<bool*>(is_all_locked) = false;
    }
  }
  return 0;  // the next object
}

}  // namespace

bool lock_program() {
  bool is_all_locked = true;
  ::dl_iterate_phdr(lock_object, &is_all_locked);
  return is_all_locked;
}

}  // namespace glmd
