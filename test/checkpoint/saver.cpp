// Saves that stop anywhere, and disks that fail. Afterwards every checkpoint that looks complete is complete, and the
// newest earlier one still exists.
// build: threads
#include "llmc/checkpoint/saver.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "state_fixture.h"

using namespace llmc;
using namespace llmc::test;
namespace fs = std::filesystem;

namespace {

// ---- what happens on the disk, call by call ------------------------------------------------------------------------

struct Change {
    enum Kind { create, write, sync_file, sync_directory, rename, make_directory, unlink, remove_directory } kind;
    std::string path, to;
    off_t offset = 0;
    std::string bytes;
};

// Forwards every call, and records it.
class Recorder : public FileCalls {
public:
    explicit Recorder(const std::string& root) : root_(root) {}
    std::vector<Change> changes;

    int open(const char* path, int flags, int mode) override {
        const int fd = FileCalls::open(path, flags, mode);
        if (fd < 0) return fd;
        paths_[fd] = below(path);
        is_directory_[fd] = flags & O_DIRECTORY;
        if (flags & O_CREAT) changes.push_back({Change::create, paths_[fd], "", 0, ""});
        return fd;
    }
    ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) override {
        changes.push_back({Change::write, paths_[fd], "", offset, {static_cast<const char*>(data), bytes}});
        return FileCalls::pwrite(fd, data, bytes, offset);
    }
    int fsync(int fd) override {
        changes.push_back({is_directory_[fd] ? Change::sync_directory : Change::sync_file, paths_[fd], "", 0, ""});
        return FileCalls::fsync(fd);
    }
    int rename(const char* from, const char* to) override {
        changes.push_back({Change::rename, below(from), below(to), 0, ""});
        return FileCalls::rename(from, to);
    }
    int mkdir(const char* path, int mode) override {
        const int result = FileCalls::mkdir(path, mode);
        if (result == 0) changes.push_back({Change::make_directory, below(path), "", 0, ""});
        return result;
    }
    int unlink(const char* path) override {
        changes.push_back({Change::unlink, below(path), "", 0, ""});
        return FileCalls::unlink(path);
    }
    int unlink_at(int directory, const char* name) override {
        changes.push_back({Change::unlink, paths_[directory] + "/" + name, "", 0, ""});
        return FileCalls::unlink_at(directory, name);
    }
    int rmdir(const char* path) override {
        changes.push_back({Change::remove_directory, below(path), "", 0, ""});
        return FileCalls::rmdir(path);
    }

private:
    std::string below(const char* path) const { return fs::path(path).lexically_relative(root_).string(); }
    const std::string root_;
    std::map<int, std::string> paths_;
    std::map<int, bool> is_directory_;
};

// The state after a crash of files and names that were not synced.
enum class Unsynced {
    kept,            // everything, as after a kill
    bytes_lost,      // names survive, but files lose their unsynced bytes
    names_lost,      // both are lost: names return to the last sync of their directory
    manifests_back,  // everything survives, and a manifest whose deletion was not synced reappears
};

// A model of a disk for saves: files by path, and their synced state.
class Disk {
public:
    void apply(const Change& c, size_t written_bytes) {
        const std::string parent = fs::path(c.path).parent_path().string();
        switch (c.kind) {
            case Change::create:
                files_[c.path] = {};
                safe_files_.erase(c.path);
                dirty_[parent].push_back(c);
                break;
            case Change::write: {
                std::string& file = files_[c.path];
                const size_t end = static_cast<size_t>(c.offset) + written_bytes;
                if (file.size() < end) file.resize(end);
                std::memcpy(file.data() + c.offset, c.bytes.data(), written_bytes);
                break;
            }
            case Change::sync_file:
                safe_files_[c.path] = files_[c.path];
                break;
            case Change::sync_directory:
                dirty_[c.path].clear();
                break;
            case Change::rename:
                move(c.path, c.to);
                dirty_[parent].push_back(c);
                break;
            case Change::make_directory:
                directories_.insert(c.path);
                dirty_[parent].push_back(c);
                break;
            case Change::unlink: {
                Change with_content = c;
                with_content.bytes = files_[c.path];
                files_.erase(c.path);
                dirty_[parent].push_back(with_content);
                break;
            }
            case Change::remove_directory:
                directories_.erase(c.path);
                break;
        }
    }

    void materialize(const std::string& root, Unsynced unsynced) const {
        Disk left = *this;
        if (unsynced == Unsynced::names_lost) left.lose_names();
        if (unsynced == Unsynced::manifests_back) left.bring_manifests_back();
        for (const std::string& directory : left.directories_) fs::create_directories(root + "/" + directory);
        for (const auto& [path, bytes] : left.files_) {
            if (!fs::exists(fs::path(root + "/" + path).parent_path())) continue;
            const auto safe = left.safe_files_.find(path);
            const bool whole = unsynced == Unsynced::kept || unsynced == Unsynced::manifests_back;
            make_file(root + "/" + path, whole ? bytes : safe == left.safe_files_.end() ? "" : safe->second);
        }
    }

private:
    template <class Map>
    static void move_names(Map& map, const std::string& from, const std::string& to) {
        Map moved;
        for (auto& [path, value] : map) {
            const bool inside = path == from || path.starts_with(from + "/");
            moved[inside ? to + path.substr(from.size()) : path] = value;
        }
        map = std::move(moved);
    }
    void move(const std::string& from, const std::string& to) {
        move_names(files_, from, to);
        move_names(safe_files_, from, to);
        move_names(dirty_, from, to);
        std::set<std::string> moved;
        for (const std::string& path : directories_) {
            const bool inside = path == from || path.starts_with(from + "/");
            moved.insert(inside ? to + path.substr(from.size()) : path);
        }
        directories_ = std::move(moved);
    }
    // Removes names created since their directory was last synced, the last one first.
    void lose_names() {
        std::vector<Change> lost;
        for (const auto& [directory, changes] : dirty_) lost.insert(lost.begin(), changes.rbegin(), changes.rend());
        for (const Change& c : lost) {
            if (c.kind == Change::create) files_.erase(c.path);
            if (c.kind == Change::make_directory) directories_.erase(c.path);
            if (c.kind == Change::unlink) files_[c.path] = safe_files_[c.path] = c.bytes;
            if (c.kind == Change::rename) move(c.to, c.path);
        }
    }

    void bring_manifests_back() {
        for (const auto& [directory, changes] : dirty_)
            for (const Change& c : changes)
                if (c.kind == Change::unlink && c.path.ends_with("manifest.json")) files_[c.path] = c.bytes;
    }

    std::map<std::string, std::string> files_, safe_files_;
    std::set<std::string> directories_;
    std::map<std::string, std::vector<Change>> dirty_;  // by directory
};

// ---- a run that saves ----------------------------------------------------------------------------------------------

SaveJob job(int64_t step) {
    SaveJob job;
    job.manifest = state_manifest(step, 1);
    job.slices = state_slices(0, 1);
    job.values = state_values(job.slices, step);
    return job;
}

// Saves these steps and keeps the last two checkpoints.
std::vector<SaveOutcome> save(const std::string& directory, const std::vector<int64_t>& steps,
                              FileCalls& calls = system_calls()) {
    CheckpointSaver saver(Comm::self(), directory, {2, 0}, -1, calls);
    std::vector<SaveOutcome> outcomes;
    for (const int64_t step : steps) {
        std::optional<SaveOutcome> outcome = saver.begin(job(step));
        if (!outcome) outcome = saver.wait();
        outcomes.push_back(*outcome);
    }
    return outcomes;
}

// The step of the newest checkpoint, or -1. Checks that all checkpoints that look complete are.
int64_t newest_whole(const std::string& directory) {
    int64_t newest = -1;
    for (const FoundCheckpoint& found : find_checkpoints(directory)) {
        if (!found.has_manifest) continue;
        const CheckpointReader reader(found.path);
        reader.verify(Verify::full);
        if (!holds_its_state(reader) || reader.manifest().step != found.step)
            throw Error(ExitCode::failure, found.path + " is not what it was");
        newest = std::max(newest, found.step);
    }
    return newest;
}

// Names in the directory that are neither checkpoints of these steps nor the obstacle in the way of the third save.
std::vector<std::string> left_over(const std::string& directory, const std::vector<int64_t>& steps) {
    std::vector<std::string> names;
    const std::string in_the_way = fs::path(checkpoint_path(directory, 3)).filename().string();
    for (const auto& entry : fs::directory_iterator(directory)) {
        const std::string path = entry.path().string(), name = entry.path().filename().string();
        const bool kept = std::any_of(steps.begin(), steps.end(),
                                      [&](int64_t step) { return path == checkpoint_path(directory, step); });
        const bool incomplete = !fs::exists(path + "/manifest.json");
        if (!kept && !(incomplete && (name == in_the_way || name == in_the_way + ".set_aside"))) names.push_back(name);
    }
    return names;
}

bool in_every_place() { return std::getenv("CHECKPOINT_MATRIX") != nullptr; }

}  // namespace

TEST_CASE("saver: the newest checkpoints stay, older ones are removed") {
    TemporaryDirectory folder;
    const std::string directory = folder / "checkpoints";
    const auto outcomes = save(directory, {1, 2, 3, 4});
    CHECK(outcomes.size() == 4);
    for (const SaveOutcome& outcome : outcomes) CHECK(outcome.problem == "");
    CHECK(outcomes[3].bytes == fs::file_size(outcomes[3].path + "/" + state_file_name(0)));
    std::vector<int64_t> steps;
    for (const FoundCheckpoint& found : find_checkpoints(directory)) steps.push_back(found.step);
    CHECK(steps == std::vector<int64_t>{4, 3});
    CHECK(newest_whole(directory) == 4);
}

TEST_CASE("saver: a checkpoint's bytes are those of its values, in their formats, and headers") {
    TemporaryDirectory folder;
    const SaveOutcome outcome = save(folder / "checkpoints", {1})[0];
    std::ifstream file(outcome.path + "/" + state_file_name(0), std::ios::binary);
    uint64_t header = 0;
    file.read(reinterpret_cast<char*>(&header), sizeof header);
    CHECK(checkpoint_bytes(Comm::self(), state_slices(0, 1)) == outcome.bytes - sizeof header - header);
}

TEST_CASE(
    "saver: a crash at any point leaves the newest complete checkpoint, and nothing that only looks like one, "
    "and the next save clears up") {
    TemporaryDirectory folder;
    Recorder recorder(folder / "");
    const std::string directory = folder / "checkpoints";
    // Three saves. The last one deletes the first, with an incomplete directory in its way.
    save(directory, {1, 2}, recorder);
    const size_t second_done = recorder.changes.size();
    fs::create_directories(checkpoint_path(directory, 3));
    recorder.changes.push_back({Change::make_directory, "checkpoints/step_00000003", "", 0, ""});
    recorder.changes.push_back({Change::sync_directory, "checkpoints", "", 0, ""});
    save(directory, {3}, recorder);
    CHECK(newest_whole(directory) == 3);
    REQUIRE(second_done > 12);

    Disk disk;
    int points = 0;
    size_t done = 0;
    for (const Change& change : recorder.changes) {
        const size_t step = in_every_place() ? 1 : 97;  // bytes between the places where a write is cut
        const size_t last = change.kind == Change::write ? change.bytes.size() : 0;
        for (size_t cut = 0; cut < std::max<size_t>(last, 1); cut += step) {
            Disk cut_disk = disk;
            if (last > 0) cut_disk.apply(change, cut);
            for (const Unsynced unsynced :
                 {Unsynced::kept, Unsynced::bytes_lost, Unsynced::names_lost, Unsynced::manifests_back}) {
                TemporaryDirectory after;
                cut_disk.materialize(after / "", unsynced);
                CAPTURE(change.path);
                CAPTURE(change.kind);
                CAPTURE(done);
                CAPTURE(cut);
                CAPTURE(static_cast<int>(unsynced));
                const int64_t newest = newest_whole(after / "checkpoints");
                const int64_t least = done > second_done ? 2 : -1;
                CHECK((newest >= least && newest <= 3));
                save(after / "checkpoints", {4});
                CHECK(left_over(after / "checkpoints", {4, newest}) == std::vector<std::string>{});
                points++;
            }
        }
        disk.apply(change, change.bytes.size());
        done++;
    }
    CHECK(points > 150);
    TemporaryDirectory after;  // rebuilt from the recording alone
    disk.materialize(after / "", Unsynced::names_lost);
    CHECK(newest_whole(after / "checkpoints") == 3);
}

namespace {

// Makes one call fail, or all calls from it on, or answers like a busy system.
class Trouble : public FileCalls {
public:
    int error = 0, at = 0, calls = 0;
    bool once = false, interrupted = false, short_writes = false;

    int open(const char* path, int flags, int mode) override {
        return (flags & O_CREAT) && fails() ? -1 : FileCalls::open(path, flags, mode);
    }
    ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) override {
        if (interrupted && (odd_ = !odd_)) return errno = EINTR, -1;
        if (fails()) return -1;
        return FileCalls::pwrite(fd, data, short_writes ? std::max<size_t>(1, bytes / 2) : bytes, offset);
    }
    int fsync(int fd) override {
        if (interrupted && (odd_ = !odd_)) return errno = EINTR, -1;
        return fails() ? -1 : FileCalls::fsync(fd);
    }
    int close(int fd) override {
        const int result = FileCalls::close(fd);
        return fails() ? -1 : result;
    }
    int rename(const char* from, const char* to) override { return fails() ? -1 : FileCalls::rename(from, to); }
    int mkdir(const char* path, int mode) override { return fails() ? -1 : FileCalls::mkdir(path, mode); }
    int unlink(const char* path) override { return fails() ? -1 : FileCalls::unlink(path); }
    int unlink_at(int directory, const char* name) override {
        return fails() ? -1 : FileCalls::unlink_at(directory, name);
    }
    int rmdir(const char* path) override { return fails() ? -1 : FileCalls::rmdir(path); }

private:
    bool fails() {
        calls++;
        if (error == 0 || calls < at || (once && calls > at)) return false;
        errno = error;
        return true;
    }
    bool odd_ = false;
};

}  // namespace

TEST_CASE("saver: whichever call fails, old checkpoints stay and the next save works") {
    TemporaryDirectory counting;
    Trouble none;
    save(counting / "checkpoints", {1, 2}, none);
    const int before = none.calls;
    save(counting / "checkpoints", {3}, none);
    const int all = none.calls - before;
    REQUIRE(all > 15);
    for (const int error : {ENOSPC, EIO, EDQUOT})
        for (int at = 1; at <= all; at++)
            for (const bool once : {true, false}) {
                CAPTURE(error);
                CAPTURE(at);
                CAPTURE(once);
                TemporaryDirectory folder;
                const std::string directory = folder / "checkpoints";
                save(directory, {1, 2});
                Trouble trouble;
                trouble.error = error, trouble.at = at, trouble.once = once;
                const SaveOutcome outcome = save(directory, {3}, trouble)[0];
                if (outcome.problem.empty()) {
                    CHECK(newest_whole(directory) ==
                          3);  // a failed deletion of an old checkpoint, or a failed last close()
                    const bool of_old_ones = contains(outcome.prune_problem, std::strerror(error));
                    CHECK((of_old_ones || outcome.prune_problem.empty()));
                    CHECK(at > all / 2);
                } else {
                    CHECK(contains(outcome.problem, std::strerror(error)));
                    CHECK(outcome.code == (error == EIO ? ExitCode::checkpoint : ExitCode::no_resources));
                    CHECK(newest_whole(directory) >= 2);
                }
                CHECK(save(directory, {4})[0].problem == "");
                CHECK(newest_whole(directory) == 4);
                for (const std::string& name : names_in(directory)) CHECK(!name.ends_with(".tmp"));
            }
}

TEST_CASE("saver: interrupted calls and short writes are continued") {
    TemporaryDirectory folder;
    Trouble trouble;
    trouble.interrupted = trouble.short_writes = true;
    CHECK(save(folder / "checkpoints", {1}, trouble)[0].problem == "");
    CHECK(newest_whole(folder / "checkpoints") == 1);
}

TEST_CASE("saver: one save at a time; a rank's own error before it makes it fail") {
    TemporaryDirectory folder;
    CheckpointSaver saver(Comm::self(), folder / "c", {}, -1);
    CHECK(!saver.begin(job(1)));
    CHECK(saver.is_active());
    CHECK(error_of([&] { saver.begin(job(2)); }, ExitCode::failure) ==
          "a save was started while another one was active");
    CHECK(saver.wait()->problem == "");
    SaveJob late = job(2);
    late.failure = {ExitCode::no_resources, "no memory"};
    const auto outcome = saver.begin(std::move(late));
    REQUIRE(outcome);
    CHECK(outcome->problem == "no memory");
    CHECK(outcome->code == ExitCode::no_resources);
    SaveJob other = job(3);
    other.checksums = {1};
    CHECK(!saver.begin(std::move(other)));
    CHECK(contains(saver.wait()->problem, "its values changed while they were copied"));
    CHECK(newest_whole(folder / "c") == 1);
}

TEST_CASE("saver: if no thread can be started, the save fails and the next one works") {
    TemporaryDirectory folder;
    CheckpointSaver saver(Comm::self(), folder / "c", {}, -1);
    pthread_attr_t usual, impossible;
    REQUIRE(pthread_getattr_default_np(&usual) == 0);
    REQUIRE(pthread_getattr_default_np(&impossible) == 0);
    REQUIRE(pthread_attr_setstacksize(&impossible, size_t{1} << 60) == 0);
    const auto fail = [&](const std::optional<SaveOutcome>& outcome) {
        pthread_setattr_default_np(&usual);
        REQUIRE(outcome);
        CHECK(contains(outcome->problem, "cannot start a thread that saves: "));
        CHECK(outcome->code == ExitCode::no_resources);
        CHECK(!saver.is_active());
        CHECK(names_in(folder / "c").empty());
    };
    // The thread that writes this rank's file, then the thread that writes the manifest.
    pthread_setattr_default_np(&impossible);
    CHECK(!saver.begin(job(1)));
    CHECK(!saver.is_working());
    fail(saver.wait());
    SaveJob written_here = job(1);
    written_here.in_background = false;
    CHECK(!saver.begin(std::move(written_here)));
    pthread_setattr_default_np(&impossible);
    fail(saver.wait());
    CHECK(!saver.begin(job(2)));
    CHECK(saver.wait()->problem == "");
    CHECK(newest_whole(folder / "c") == 2);
}

namespace {

// Checkpoints of steps 1 and 2, and a folder with a user's file.
struct WithFolder : TemporaryDirectory {
    WithFolder() {
        save(directory, {1, 2});
        fs::create_directory(somebodys);
        make_file(thesis, "a thesis");
        make_file(somebodys + "/rank_00000.safetensors", "numbers");
        make_file(somebodys + "/manifest.json", "a list");
    }
    const std::string directory = *this / "c", somebodys = *this / "somebodys", thesis = somebodys + "/thesis";
    std::vector<std::string> names() const { return names_in(directory); }
    bool is_untouched() const { return names_in(somebodys).size() == 3 && read_file(thesis) == "a thesis"; }
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("checkpoint directory: a leftover link is removed, and never its target") {
    WithFolder folder;
    fs::create_directory_symlink(folder / "somebodys", folder.directory + "/step_00000003.tmp");
    fs::create_symlink(folder.thesis, folder.directory + "/step_00000009.tmp");
    CHECK(save(folder.directory, {3})[0].problem == "");
    CHECK(folder.is_untouched());
    CHECK(folder.names() == Names{"step_00000002", "step_00000003"});
    fs::create_directory_symlink(folder / "somebodys", folder.directory + "/step_00000009.tmp");
    remove_all_checkpoints(system_calls(), folder.directory);
    CHECK(folder.is_untouched());
    CHECK(!fs::exists(folder.directory));
}

TEST_CASE("checkpoint directory: a leftover with other files is set aside, and saves continue") {
    WithFolder folder;
    make_file(folder.directory + "/step_00000003.tmp", "a file");
    fs::create_directories(folder.directory + "/step_00000004.tmp/inside");
    fs::create_directories(folder.directory + "/step_00000005.tmp/rank_00000.safetensors");
    fs::create_directories(folder.directory + "/step_00000006.tmp");
    make_file(folder.directory + "/step_00000006.tmp/notes", "mine");
    make_file(folder.directory + "/step_00000006.tmp/rank_00000.safetensors", "half of it");
    CHECK(save(folder.directory, {3, 4})[0].problem == "");
    CHECK(folder.names() == Names{"step_00000003", "step_00000003.tmp.set_aside", "step_00000004",
                                  "step_00000004.tmp.set_aside", "step_00000005.tmp.set_aside",
                                  "step_00000006.tmp.set_aside"});
    CHECK(names_in(folder.directory + "/step_00000006.tmp.set_aside") == Names{"notes"});
    remove_all_checkpoints(system_calls(), folder.directory);
    CHECK(read_file(folder.directory + "/step_00000006.tmp.set_aside/notes") == "mine");
}

TEST_CASE("checkpoint directory: checkpoints behind links are read, and stay when the links are removed") {
    WithFolder folder;
    for (const int64_t step : {1, 2}) {
        const std::string path = checkpoint_path(folder.directory, step);
        fs::rename(path, folder / ("moved" + std::to_string(step)));
        fs::create_directory_symlink(folder / ("moved" + std::to_string(step)), path);
    }
    fs::create_directory_symlink("/nowhere", checkpoint_path(folder.directory, 7));
    const std::vector<FoundCheckpoint> found = find_checkpoints(folder.directory);
    REQUIRE(found.size() == 3);
    CHECK((found[0].is_link && !found[0].has_manifest));
    CHECK((found[1].is_link && found[1].has_manifest));
    CHECK(newest_whole(folder.directory) == 2);
    save(folder.directory, {3});
    CHECK(folder.names() == Names{"step_00000002", "step_00000003", "step_00000007"});
    for (const char* moved : {"moved1", "moved2"}) CHECK_NOTHROW(CheckpointReader(folder / moved).verify(Verify::full));
}

TEST_CASE("checkpoint directory: one failed removal does not prevent the others") {
    WithFolder folder;
    save(folder.directory, {3, 4});
    for (const int64_t step : {1, 2}) write_checkpoint(folder.directory, step, 1);
    // The directory of step 2 cannot be renamed, so it stays.
    struct Stubborn : FileCalls {
        int rename(const char* from, const char* to) override {
            return contains(from, "step_00000002") ? (errno = EACCES, -1) : FileCalls::rename(from, to);
        }
    } calls;
    CHECK(contains(checkpoint_error([&] { prune_checkpoints(calls, folder.directory, {2, 0}, -1); }), "step_00000002"));
    CHECK(folder.names() == Names{"step_00000002", "step_00000003", "step_00000004"});
}

TEST_CASE("checkpoint directory: a checkpoint that another program reads stays until it is done") {
    WithFolder folder;
    for (const int64_t step : {3, 4, 5}) write_checkpoint(folder.directory, step, 1);
    prune_checkpoints(system_calls(), folder.directory, {1, 0}, -1, {1, 3});
    CHECK(folder.names() == Names{"step_00000001", "step_00000003", "step_00000005"});
    prune_checkpoints(system_calls(), folder.directory, {1, 0}, -1, {3});
    CHECK(folder.names() == Names{"step_00000003", "step_00000005"});
}

TEST_CASE("checkpoint directory: only files and directories that a save names so are deleted") {
    WithFolder folder;
    for (const char* name : {"step_x", "step_", "step_3x", "step_00000003.bak", "step_00000003.tmp2",
                             "step_3.set_asidex", "step_x.tmp", "mine"}) {
        fs::create_directories(folder.directory + "/" + name);
        make_file(folder.directory + "/" + name + "/manifest.json", "mine");
    }
    const Names others = {"manifest.json.bak", "rank_.safetensors", "rank_0.safetensors.bak", "rank_mine.safetensors"};
    for (const std::string& name : others) make_file(checkpoint_path(folder.directory, 2) + "/" + name, "mine");
    fs::create_directories(folder.directory + "/step_00000007.tmp.set_aside2");
    save(folder.directory, {3});  // removes leftovers
    remove_all_checkpoints(system_calls(), folder.directory);
    CHECK(folder.names() == Names{"mine", "step_", "step_00000002.tmp.set_aside", "step_00000003.bak",
                                  "step_00000003.tmp2", "step_3.set_asidex", "step_3x", "step_x", "step_x.tmp"});
    CHECK(names_in(folder.directory + "/step_00000002.tmp.set_aside") == others);
    for (const char* name : {"step_x", "step_3x", "step_x.tmp", "mine"})
        CHECK(read_file(folder.directory + "/" + name + "/manifest.json") == "mine");
}

TEST_CASE("checkpoint directory: retention") {
    TemporaryDirectory folder;
    const std::string directory = folder / "c";
    for (int64_t step = 1; step <= 8; step++) write_checkpoint(directory, step, 1);
    fs::remove(checkpoint_path(directory, 2) + "/manifest.json");  // for a person to inspect
    fs::create_directory(directory + "/step_x");
    make_file(directory + "/step_00000009", "a file");
    CHECK(find_checkpoints(directory).size() == 8);
    prune_checkpoints(system_calls(), directory, {0, 0}, -1);
    CHECK(find_checkpoints(directory).size() == 8);
    prune_checkpoints(system_calls(), directory, {2, 3}, 5);
    std::vector<int64_t> steps;
    for (const FoundCheckpoint& found : find_checkpoints(directory)) steps.push_back(found.step);
    CHECK(steps == std::vector<int64_t>{8, 7, 6, 3, 2});
    const std::string aside = set_aside(system_calls(), checkpoint_path(directory, 7));
    CHECK(aside == checkpoint_path(directory, 7) + ".set_aside");
    write_checkpoint(directory, 7, 1);
    CHECK(set_aside(system_calls(), checkpoint_path(directory, 7)) == aside + "2");
}
