#include "platform/result.h"

#include <sysexits.h>

namespace glmd {

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return EX_USAGE;
    case ErrorKind::bad_input:
    case ErrorKind::corrupt:
      return EX_DATAERR;
    case ErrorKind::not_found:
      return EX_NOINPUT;
    case ErrorKind::unavailable:
      return EX_UNAVAILABLE;
    case ErrorKind::io:
      return EX_IOERR;
    case ErrorKind::no_memory:
    case ErrorKind::busy:
      return EX_TEMPFAIL;
    case ErrorKind::protocol:
      return EX_PROTOCOL;
    case ErrorKind::denied:
      return EX_NOPERM;
    case ErrorKind::config:
      return EX_CONFIG;
    case ErrorKind::cancelled:
      return 130;
    case ErrorKind::timeout:
      return 124;  // as timeout(1)
    case ErrorKind::internal:
      return EX_SOFTWARE;
  }
  return EX_SOFTWARE;
}

}  // namespace glmd
