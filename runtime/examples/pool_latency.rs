//! Prints what a launch of empty blocks costs: `pool_latency [THREADS]`, best and median of many lists.

use runtime::cpu::pool::{Launch, Pool};
use std::time::{Duration, Instant};

unsafe extern "C" fn nothing(_bufs: *const *mut u8, _x: u32, _y: u32, _shared: *mut u8) {}

fn measure(pool: &mut Pool, what: &str, list: &[Launch<'_>], pause: Duration) {
    let mut times: Vec<f64> = (0..2000)
        .map(|_| {
            let until = Instant::now() + pause;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            let start = Instant::now();
            // SAFETY: the kernel touches nothing.
            unsafe { pool.run_list(list) }.expect("no shared memory is asked for");
            start.elapsed().as_nanos() as f64 / list.len() as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{what}: best {:.0} ns, median {:.0} ns a launch", times[0], times[times.len() / 2]);
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(2);
    let mut pool = Pool::new(threads).expect("threads start");
    println!("{} threads", pool.threads());
    let launch = |x| Launch { kernel: nothing, bufs: &[], grid: [x, 1], shared_bytes: 0 };
    let wide = vec![launch(16); 64];
    let single = vec![launch(1); 64];
    let mixed: Vec<Launch> = (0..64).map(|i| launch(if i % 4 == 3 { 1 } else { 16 })).collect();
    measure(&mut pool, "list of 64, 16 blocks each", &wide, Duration::ZERO);
    measure(&mut pool, "list of 64, every fourth of 1 block", &mixed, Duration::ZERO);
    measure(&mut pool, "list of 64, 1 block each", &single, Duration::ZERO);
    measure(&mut pool, "one launch a list", &wide[..1], Duration::ZERO);
    measure(&mut pool, "one launch a list, 5 us apart", &wide[..1], Duration::from_micros(5));
    measure(&mut pool, "one launch a list, 1 ms apart (threads asleep)", &wide[..1], Duration::from_millis(1));
}
