#include "tools/convert/journal.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

namespace glmd {
namespace {

constexpr int64_t journal_bytes_max = int64_t{256} << 20;

// The lines that were written whole.
std::vector<std::string_view> whole_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return lines;
}

}  // namespace

Result<Journal> Journal::open(const std::string& path, const Json& fingerprint) {
  Journal journal;
  journal.file_ = TRY(File::open_append(path));
  const int descriptor = journal.file_.descriptor();
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return output_error(path, "lock");
    return error(ErrorKind::busy, "{}: another conversion holds it", path);
  }
  const std::string text = TRY(read_file(path, journal_bytes_max));
  const std::vector<std::string_view> lines = whole_lines(text);
  size_t kept_bytes = 0;
  if (!lines.empty() && lines[0] == fingerprint.to_string()) {
    kept_bytes = lines[0].size() + 1;
    for (size_t i = 1; i < lines.size(); ++i) {
      const Result<Json> line = parse_json(lines[i], path);
      const Json* file =
          line.ok() && line.value().is_object() ? line.value().find("file") : nullptr;
      const Json* tensors = file != nullptr ? line.value().find("tensors") : nullptr;
      if (file == nullptr || !file->is_string() || tensors == nullptr || !tensors->is_object())
        break;
      Hashes hashes;
      for (const auto& [name, hash] : tensors->members()) {
        if (hash.is_integer()) hashes[name] = static_cast<uint64_t>(hash.as_integer());
      }
      journal.files_[file->as_string()] = std::move(hashes);
      kept_bytes += lines[i].size() + 1;
    }
  }
  journal.was_restarted_ = kept_bytes == 0 && !text.empty();
  if (::ftruncate(descriptor, static_cast<off_t>(kept_bytes)) != 0)
    return output_error(path, "truncate");
  if (kept_bytes == 0) TRY(journal.append_line(fingerprint));
  return journal;
}

const Journal::Hashes* Journal::find(std::string_view file) const {
  const auto found = files_.find(file);
  return found == files_.end() ? nullptr : &found->second;
}

Result<void> Journal::add(const std::string& file, Hashes hashes) {
  std::vector<Json::Member> members;
  for (const auto& [name, hash] : hashes)
    members.emplace_back(name, Json::integer(static_cast<int64_t>(hash)));
  files_[file] = std::move(hashes);
  return append_line(
      Json::object({{"file", Json::string(file)}, {"tensors", Json::object(std::move(members))}}));
}

Result<void> Journal::append_line(const Json& json) {
  const std::string line = json.to_string() + "\n";
  TRY(file_.write({reinterpret_cast<const uint8_t*>(line.data()), line.size()}));
  return file_.sync();
}

}  // namespace glmd
