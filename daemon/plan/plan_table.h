// A plan as people read it, made from the object that `glmd --plan --json` prints and PLAN answers:
// glmd and glmctl, whose object comes from a daemon, print one table. Members that are missing are
// left out; text of others is printed as it is. Pure.
#pragma once

#include <string>

#include "platform/json.h"

namespace glmd {

// Adds "expected" where "token" and "measured" have what it takes.
void add_expected(Json& plan);

// Hardware, model, sum and expected speed.
std::string plan_table(const Json& plan);
// Of its member "memory": a line for every term.
std::string memory_table(const Json& memory);

}  // namespace glmd
