mod common;
use codegen::*;
#[test]
fn dump() {
    let k = common::gemv::gemv(44, 1);
    for t in ["x86-64-v3", "x86-64-v4", "x86-64-v4+vnni", "sm_90", "sm_121"] {
        let t = Target::parse(t).unwrap();
        std::fs::write(format!("/tmp/cg_{}.ll", t.name()), llvm_ir(&k, t).unwrap()).unwrap();
        let t0 = std::time::Instant::now();
        match t {
            Target::Host(i) => std::fs::write(format!("/tmp/cg_{}.s", t.name()), host_assembly(&[&k], i).unwrap()).unwrap(),
            _ => std::fs::write(format!("/tmp/cg_{}.ptx", t.name()), &ptx(&[&k], t).unwrap()[0]).unwrap(),
        }
        println!("{} {:?}", t.name(), t0.elapsed());
    }
}

#[test]
fn rnd() {
    let seed: u64 = std::env::var("SEED").unwrap().parse().unwrap();
    let (k, _) = common::random::kernel(seed, 4, 20);
    println!("{}", llvm_ir(&k, Target::Sm90).unwrap());
    println!("{:?}", ptx(&[&k], Target::Sm90).err());
}
#[test]
fn rndptx() {
    let seed: u64 = std::env::var("SEED").unwrap().parse().unwrap();
    let (k, _) = common::random::kernel(seed, 4, 20);
    std::fs::write("/tmp/r.ll", llvm_ir(&k, Target::Sm90).unwrap()).unwrap();
}
#[test]
fn rndall() {
    for seed in 0..40 {
    let (k, _) = common::random::kernel(seed, 4, 24);
    for (t,n) in [(Target::Sm90, "90"), (Target::Sm121, "121")] {
    std::fs::write(format!("/tmp/cgp/{seed}_{n}.ptx"), &ptx(&[&k], t).unwrap()[0]).unwrap(); }
    }
}
