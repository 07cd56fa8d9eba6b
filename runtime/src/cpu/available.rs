//! How much memory this process can still have: the least of what the machine has, what its control groups leave, and what
//! is left of its address space.

use crate::memory::Available;
use std::path::Path;

/// The least of all limits that can be read; `None` where none can.
pub fn available() -> Option<Available> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|t| meminfo(&t));
    let groups = read("/proc/self/cgroup").and_then(|t| groups(&t, Path::new("/sys/fs/cgroup")));
    let space = read("/proc/self/statm").and_then(|t| address_space(&t));
    let all = [
        (machine, "free memory of this machine"),
        (groups, "left of the control group's limit"),
        (space, "left of the address space (ulimit -v)"),
    ];
    let found = all.into_iter().filter_map(|(bytes, limit)| Some(Available { bytes: bytes?, limit }));
    found.min_by_key(|a| a.bytes)
}

/// `MemAvailable` of /proc/meminfo.
fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What the groups of /proc/self/cgroup leave, of version 1 or 2. In a container the path may be that of the machine; the
/// group is then at the root.
fn groups(text: &str, root: &Path) -> Option<u64> {
    let mut least: Option<u64> = None;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (base, names) = match controllers {
            "" => (root.to_path_buf(), ["memory.max", "memory.current", "inactive_file"]),
            c if c.split(',').any(|c| c == "memory") => {
                (root.join("memory"), ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"])
            }
            _ => continue,
        };
        // The limits of all groups above hold too.
        let path = Path::new(path.trim_start_matches('/'));
        for group in path.ancestors() {
            if let Some(left) = left(&base.join(group), names) {
                least = Some(least.map_or(left, |l| l.min(left)));
            }
        }
    }
    least
}

/// Limit less usage of one group. Pages of files that nobody used lately are given up when memory is short.
fn left(group: &Path, [limit, usage, cached]: [&str; 3]) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok(); // not `max`
    let stat = read("memory.stat").unwrap_or_default();
    let cached = stat.lines().find_map(|l| l.strip_prefix(cached)?.strip_prefix(' ')?.parse::<u64>().ok()).unwrap_or(0);
    Some(number(limit)?.saturating_sub(number(usage)?.saturating_sub(cached)))
}

/// The limit of the address space less what is mapped; `None` without a limit.
fn address_space(statm: &str) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a value that lives; the call has no other effect.
    if unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) } != 0 || limit.rlim_cur == libc::RLIM_INFINITY {
        return None;
    }
    // SAFETY: no effect.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    let mapped = statm.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(page)?;
    Some(limit.rlim_cur.saturating_sub(mapped))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn this_machine_says() {
        let a = available().expect("linux");
        assert!(a.bytes > 1 << 20 && a.bytes < 1 << 50, "{a:?}");
    }

    #[test]
    fn meminfo_in_bytes() {
        assert_eq!(meminfo("MemTotal:  24 kB\nMemAvailable:     12 kB\n"), Some(12 * 1024));
        assert_eq!(meminfo("MemTotal:  24 kB\n"), None);
        assert_eq!(meminfo("MemAvailable: -1 kB\n"), None);
    }

    fn folder(files: &[(&str, &str)]) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("isobit-groups-{}-{}", std::process::id(), files.len()));
        for (path, text) in files {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn the_least_of_all_groups_counts() {
        let dir = folder(&[
            ("a/b/memory.max", "1000\n"),
            ("a/b/memory.current", "400\n"),
            ("a/b/memory.stat", "anon 300\ninactive_file 100\n"),
            ("a/memory.max", "600\n"),
            ("a/memory.current", "450\n"),
            ("memory/c/memory.limit_in_bytes", "500\n"),
            ("memory/c/memory.usage_in_bytes", "490\n"),
            ("memory/c/memory.stat", "inactive_file 9\ntotal_inactive_file 20\n"),
            ("m/memory.max", "max\n"),
            ("m/memory.current", "5\n"),
        ]);
        assert_eq!(groups("0::/a/b\n", &dir), Some(150));
        assert_eq!(groups("5:cpu,memory:/c\n1:name=systemd:/x\n", &dir), Some(30));
        assert_eq!(groups("5:memory:/c\n0::/a/b\n", &dir), Some(30));
        assert_eq!(groups("0::/m\n", &dir), None);
        assert_eq!(groups("0::/not/here\nnonsense\n", &dir), None);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
