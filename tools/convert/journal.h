// The journal of a conversion: one line of JSON for what it converts (sources and options), then
// one for every finished file with the hashes of its tensors. A line that was cut off is as if not
// written.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "platform/file.h"
#include "platform/json.h"
#include "platform/result.h"

namespace glmd {

class Journal {
 public:
  static constexpr const char* file_name = "conversion.journal";
  using Hashes = std::map<std::string, uint64_t, std::less<>>;  // by tensor

  // Opens or starts the journal; one of other sources or options, or of none, is started anew.
  // Fails with `busy` while another conversion holds it.
  static Result<Journal> open(const std::string& path, const Json& fingerprint);

  bool was_restarted() const { return was_restarted_; }  // an earlier journal did not fit
  const Hashes* find(std::string_view file) const;
  // Durable on return.
  Result<void> add(const std::string& file, Hashes hashes);

 private:
  Result<void> append_line(const Json& json);

  File file_;
  bool was_restarted_ = false;
  std::map<std::string, Hashes, std::less<>> files_;
};

}  // namespace glmd
