#include "tools/inspect/tensor_commands.h"

#include <sysexits.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "platform/counted.h"
#include "platform/file.h"
#include "platform/standard_streams.h"
#include "storage/container.h"
#include "storage/safetensors.h"
#include "storage/tensor_inventory.h"

namespace glmd {
namespace {

int fail(const Error& error) {
  print_text(stderr, "glmd-inspect: {}\n", error.message);
  return exit_code(error.kind);
}

std::string base_name(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

void print_container(const Container& container) {
  int64_t bytes = 0;
  print_text(stdout, "{:<44} {:<9} {:<5} {:>16} {:>12}  {:<16}  {}\n", "tensor", "layout", "type",
             "shape", "bytes", "hash", "file");
  for (const auto& [name, tensor] : container.tensors()) {
    print_text(stdout, "{:<44} {:<9} {:<5} {:>16} {:>12}  {:016x}  {}\n", name,
               layout_name(tensor.layout), format_name(tensor.format),
               fmt::format("[{}, {}]", tensor.rows, tensor.columns), tensor.bytes, tensor.hash,
               base_name(container.files()[static_cast<size_t>(tensor.file)]));
    bytes += tensor.bytes;
  }
  print_text(stdout, "{}, {} bytes in {}, identity {:016x}\n",
             counted(container.tensors().size(), "tensor"), bytes,
             counted(container.files().size(), "file"), container.identity());
}

// Any folder of safetensors files: a checkpoint, say.
Result<void> print_folder(const std::string& folder) {
  int64_t count = 0, bytes = 0, files = 0;
  for (const std::string& name : TRY(list_directory(folder))) {
    if (!name.ends_with(".safetensors")) continue;
    const File file = TRY(File::open_read_only(folder + "/" + name));
    const SafetensorsHeader header = TRY(read_safetensors_header(file));
    if (files++ == 0)
      print_text(stdout, "{:<64} {:<8} {:>20} {:>12}  {}\n", "tensor", "type", "shape", "bytes",
                 "file");
    for (const StoredTensor& tensor : header.tensors) {
      print_text(stdout, "{:<64} {:<8} {:>20} {:>12}  {}\n", tensor.name, tensor.dtype,
                 shape_text(tensor.shape), tensor.bytes, name);
      bytes += tensor.bytes;
      ++count;
    }
  }
  if (files == 0)
    return error(ErrorKind::not_found, "{}: wanted *.safetensors files, got none", folder);
  print_text(stdout, "{}, {} bytes in {}\n", counted(count, "tensor"), bytes,
             counted(files, "file"));
  return {};
}

int run_tensors(const std::string& folder) {
  if (path_exists(folder + "/glmd.json")) {
    const Result<Container> container = Container::open(folder);
    if (!container.ok()) return fail(container.error());
    print_container(container.value());
    return EX_OK;
  }
  const Result<void> printed = print_folder(folder);
  return printed.ok() ? EX_OK : fail(printed.error());
}

int run_verify(const std::string& folder) {
  if (!path_exists(folder + "/glmd.json")) {
    return fail(error(ErrorKind::not_found, "{}: no container: wanted glmd.json in it", folder));
  }
  const std::vector<std::string> problems = Container::verify(folder);
  for (const std::string& problem : problems) print_text(stderr, "glmd-inspect: {}\n", problem);
  for (const std::string& line : Container::changed_texts(folder))
    print_text(stderr, "glmd-inspect: warning: {}\n", line);
  if (!problems.empty()) return EX_DATAERR;
  print_text(stdout, "{}: sound\n", folder);
  return EX_OK;
}

}  // namespace

void add_tensor_commands(CLI::App& app, int& exit_code) {
  const auto folder = std::make_shared<std::string>();
  CLI::App* tensors =
      app.add_subcommand("tensors", "List the tensors of a container or checkpoint.");
  tensors->add_option("DIR", *folder, "model folder")->required();
  tensors->callback([folder, &exit_code] { exit_code = run_tensors(*folder); });
  CLI::App* verify = app.add_subcommand(
      "verify", "Check every checksum; name all missing and short files (exit code 65).");
  verify->add_option("DIR", *folder, "container")->required();
  verify->callback([folder, &exit_code] { exit_code = run_verify(*folder); });
}

}  // namespace glmd
