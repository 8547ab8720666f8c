// Tests every matrix product of GPT layers on a GPU: whether cuBLASLt supports it, whether the result is right, and how
// long it takes. Also measures the card's limits for copies and products. dev/gpu/README.md describes the file that it
// writes.
//
//   probe --list                      prints the cases and their number; needs no GPU
//   probe --out FILE                  runs all of them; continues an existing file
//         --part I/N                  every N-th case, from the I-th (1 to N)
//         --seconds S                 stop cleanly after S seconds (exit code 75)
//         --case-seconds S            a case that takes longer ends the program; the next run skips it
//         --filter TEXT               cases whose name contains TEXT
//         --shapes layers|tiny        tiny tests this program, in a second on the host device
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "dev/probe/ceilings.h"
#include "dev/probe/record.h"
#include "dev/probe/result_file.h"
#include "llmc/base/json.h"

using namespace llmc;
using namespace llmc::probe;

namespace {

struct Settings {
    std::string out, filter, command;
    Shapes shapes = Shapes::layers;
    int part = 1, parts = 1;
    double seconds = 1e9;
    int case_seconds = 60;
    bool list = false;
};

[[noreturn]] void bad_flags(const std::string& message) { throw Error(ExitCode::bad_flags, message); }

double number(const std::string& flag, const char* text) {
    char* end = nullptr;
    const double value = std::strtod(text, &end);
    if (*text == '\0' || *end != '\0' || !(value > 0)) bad_flags(flag + " " + text + ": expected a positive number");
    return value;
}

Settings parse(int argc, char** argv) {
    Settings s;
    for (int i = 0; i < argc; i++) s.command += std::string(i ? " " : "") + argv[i];
    for (int i = 1; i < argc; i++) {
        const std::string flag = argv[i];
        if (flag == "--list") {
            s.list = true;
            continue;
        }
        const char* value = i + 1 < argc ? argv[++i] : nullptr;
        if (!value)
            bad_flags(flag + ": not known, or its value is missing; the head of dev/probe/main.cpp has the flags");
        if (flag == "--out")
            s.out = value;
        else if (flag == "--filter")
            s.filter = value;
        else if (flag == "--shapes")
            s.shapes = shapes_from_name(value);
        else if (flag == "--seconds")
            s.seconds = number(flag, value);
        else if (flag == "--case-seconds")
            s.case_seconds = static_cast<int>(number(flag, value));
        else if (flag == "--part") {
            if (std::sscanf(value, "%d/%d", &s.part, &s.parts) != 2 || s.part < 1 || s.part > s.parts)
                bad_flags(flag + " " + value + ": expected I/N with I from 1 to N");
        } else
            bad_flags(flag + ": not known; the head of dev/probe/main.cpp has the flags");
    }
    if (!s.list && s.out.empty()) bad_flags("give --out FILE, or --list");
    return s;
}

std::vector<Case> chosen_cases(const Settings& s) {
    std::vector<Case> chosen;
    int index = 0;
    for (const Case& c : all_cases(s.shapes)) {
        if (c.key().find(s.filter) == std::string::npos) continue;
        if (index++ % s.parts == s.part - 1) chosen.push_back(c);
    }
    return chosen;
}

void print_list(const std::vector<Case>& cases) {
    size_t used = 0;
    for (const Case& c : cases) {
        std::printf("%s%s%s\n", c.key().c_str(), c.used ? ", used" : "", c.in_matmul() ? "" : ", cuBLASLt alone");
        used += c.used;
    }
    std::printf("%zu cases, %zu of them used in training\n", cases.size(), used);
}

// A file next to the results with the name of the running case. A killed or crashed run leaves it behind.
class Marker {
public:
    explicit Marker(const std::string& path) : path_(path) {}
    std::optional<std::string> left_behind() const {
        std::ifstream file(path_);
        std::string key;
        if (!std::getline(file, key)) return std::nullopt;
        return key;
    }
    void set(const std::string& key) const { std::ofstream(path_) << key << "\n"; }
    void clear() const { unlink(path_.c_str()); }

private:
    std::string path_;
};

struct Tally {
    int done = 0, unsupported = 0, wrong = 0, failed = 0;
    void add(const nlohmann::ordered_json& record) {
        done++;
        if (record["supported"].is_null())
            failed++;
        else if (!record["supported"])
            unsupported++;
        else if (!record["right"])
            wrong++;
    }
};

// Returns true if the device still works.
bool run_case(Runner& runner, const Case& c, ResultFile& results, Tally& tally) {
    nlohmann::ordered_json record;
    bool alive = true;
    try {
        record = record_of(c, runner.run(c));
    } catch (const Error& error) {
        record = failed_record(c, error.what());
        try {
            synchronize_device();
        } catch (const Error&) {
            alive = false;
        }
    }
    results.append(record);
    tally.add(record);
    if (record["supported"].is_null() || record.value("right", true) == false)
        std::printf("%s\n", json_text(record).c_str());
    return alive;
}

ExitCode run(const Settings& s) {
    const std::vector<Case> cases = chosen_cases(s);
    if (s.list) {
        print_list(cases);
        return ExitCode::ok;
    }
    const auto start = std::chrono::steady_clock::now();
    const auto seconds = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    open_device(0);
    const stream_t stream = create_stream();
    nlohmann::ordered_json header = header_of(s.command);
    if (!std::ifstream(s.out)) header["ceilings"] = measure_ceilings(stream);
    ResultFile results(s.out, header, {"format", "card", "driver", "cublaslt"});
    const Marker marker(s.out + ".running");
    Tally tally;
    if (const auto left = marker.left_behind())
        for (const Case& c : cases)
            if (c.key() == *left && !results.has(*left)) {
                results.append(failed_record(c, "the probe did not come back from it"));
                tally.failed++;
            }
    std::vector<Case> open_cases;
    for (const Case& c : cases)
        if (!results.has(c.key())) open_cases.push_back(c);
    std::printf("%s, cuBLASLt %s: %zu of %zu cases to do\n", header["card"].get<std::string>().c_str(),
                LtDirect::version().c_str(), open_cases.size(), cases.size());
    std::fflush(stdout);

    ExitCode code = ExitCode::ok;
    {
        Runner runner(open_cases, stream);
        for (const Case& c : open_cases) {
            if (seconds() > s.seconds) {
                code = ExitCode::stopped;
                break;
            }
            marker.set(c.key());
            // Ends the process, because a hanging product cannot be stopped.
            alarm(static_cast<unsigned>(s.case_seconds));
            if (!run_case(runner, c, results, tally)) {
                code = ExitCode::failure;
                break;
            }
        }
        alarm(0);
        marker.clear();
    }
    std::printf("%d cases in %.1f s: %d not supported, %d wrong, %d failed; %zu of %zu in %s\n", tally.done, seconds(),
                tally.unsupported, tally.wrong, tally.failed, results.count(), cases.size(), s.out.c_str());
    if (code == ExitCode::ok) destroy_stream(stream);
    return code;
}

}  // namespace

int main(int argc, char** argv) {
    prepare_process(argv);
    try {
        return static_cast<int>(run(parse(argc, argv)));
    } catch (const std::exception& error) {
        std::fflush(stdout);
        std::fprintf(stderr, "probe: %s\n", error.what());
        const Error* known = dynamic_cast<const Error*>(&error);
        return static_cast<int>(known ? known->code() : ExitCode::failure);
    }
}
