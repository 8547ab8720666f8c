#include "llmc/commands/parse.h"

#include <cstdio>

#include "llmc/device/error.h"

namespace llmc {

bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments) {
    try {
        app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes them from the back
        return true;
    } catch (const CLI::CallForHelp&) {
        std::fputs(app.help().c_str(), stdout);
        return false;
    } catch (const CLI::ParseError& error) {
        const std::string command = app.get_name().substr(app.get_name().rfind(' ') + 1);
        throw Error(ExitCode::bad_flags, command + ": " + error.what() + " (" + app.get_name() + " --help)");
    }
}

}  // namespace llmc
