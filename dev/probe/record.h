// JSON for one case and its outcome, and for the circumstances of the measurement.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "dev/probe/runner.h"

namespace llmc::probe {

nlohmann::ordered_json record_of(const Case& c, const Outcome& outcome);
// The record of a case that ended in an exception or did not finish; it has no numbers.
nlohmann::ordered_json failed_record(const Case& c, const std::string& status);
// Date, command, card, driver and versions. Without a GPU "measured" is false: the host device's times mean nothing.
nlohmann::ordered_json header_of(const std::string& command);

}  // namespace llmc::probe
