//! Cases of computations on buffers, and of training, which needs them.

use std::sync::Arc;

use comm_core::{AsView, AsViewMut, Comm, DType, Host, Kernels, bytemuck};
use comm_ddp::{BucketLimits, DataParallel, Options, Parameter, ParameterSet};
use comm_nccl::Cuda;
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{InProcessConfig, run};
use comm_sim::kernels_conformance::{LENGTHS, check};

use crate::context::RankContext;
use crate::error::{CaseError, During, Outcome, equal, same_bits};

/// More elements than a launch has threads.
const LONG: usize = 1_100_003;

/// Connects a communicator of all ranks, whose buffers the kernels use.
fn connect(ctx: &RankContext) -> Outcome<Comm<Cuda>> {
    Ok(Comm::<Cuda>::over(Arc::new(ctx.connect()?)).with_timeout(ctx.spec.call_timeout))
}

/// Returns a host communicator with only this rank.
fn on_host(ctx: &RankContext) -> Outcome<Comm> {
    let timeout = ctx.spec.call_timeout;
    let alone = run(1, &InProcessConfig::default(), |fabric| {
        Ok(Comm::<Host>::over(Arc::new(RingCommunicator::new(fabric, RingConfig::default(), timeout)?)))
    });
    alone.into_iter().next().unwrap_or_else(|| Err(CaseError::Wrong("there is no rank".into())))
}

pub(super) fn kernels(ctx: &RankContext) -> Outcome {
    let (device, host) = (connect(ctx)?, on_host(ctx)?);
    let [short @ .., _] = LENGTHS;
    check(&device, &host, &short)?;

    let numbers: Vec<f32> = (0..LONG).map(|at| (at % 1001) as f32 + 0.25).collect();
    let mut ours = buffer::<Cuda>(&device, &numbers)?;
    let mut theirs = buffer::<Host>(&host, &numbers)?;
    Cuda::scale(&device, ours.as_view_mut()?, 0.3)?;
    Host::scale(&host, theirs.as_view_mut()?, 0.3)?;
    same_bits("a long product", &read(&device, &ours)?, &read(&host, &theirs)?)?;
    let (got, wanted) = (
        Cuda::sum_of_squares(&device, AsView::<Cuda>::as_view(&ours)?)?,
        Host::sum_of_squares(&host, theirs.as_view()?)?,
    );
    same_bits("a long sum of squares", &[got], &[wanted])
}

fn buffer<M: Kernels>(comm: &Comm<M>, numbers: &[f32]) -> Outcome<M::Buffer> {
    let mut buffer = M::allocate(comm, DType::F32, numbers.len())?;
    M::write(comm, buffer.as_view_mut()?, bytemuck::cast_slice(numbers))?;
    Ok(buffer)
}

fn read<M: Kernels>(comm: &Comm<M>, buffer: &M::Buffer) -> Outcome<Vec<f32>> {
    let mut numbers = vec![0.0; LONG];
    M::read(comm, AsView::<M>::as_view(buffer)?, bytemuck::cast_slice_mut(&mut numbers))?;
    Ok(numbers)
}

/// The number of elements of each parameter.
const PARAMETERS: [usize; 3] = [2000, 5, 70_000];

pub(super) fn training(ctx: &RankContext) -> Outcome {
    let comm = connect(ctx)?;
    let named = |(index, len): (usize, &usize)| Parameter::new::<f32>(format!("p{index}"), [*len]);
    let parameters = ParameterSet::new(PARAMETERS.iter().enumerate().map(named)).during("the parameters")?;
    let options =
        Options::default().check_finite(true).limits(BucketLimits::DEFAULT.first_bytes(64).bytes(16_384));
    let mut replicas = DataParallel::new(&comm, parameters, options).during("the start")?;
    for round in 1..=4_u32 {
        let what = |what: &str| format!("{what} of step {round}");
        let mut step = replicas.step().during(what("the start"))?;
        // The average of rank + 1 over all ranks, times an even number, so that it is exact.
        let average = ((ctx.size as u32 + 1) * round) as f32;
        let last_is_finite = round < 4 || ctx.rank > 0;
        for index in (0..PARAMETERS.len()).rev() {
            let mut gradient = vec![((ctx.rank as u32 + 1) * 2 * round) as f32; PARAMETERS[index]];
            if !last_is_finite && index == 1 {
                gradient[4] = f32::INFINITY;
            }
            step.ready(index, &buffer(&comm, &gradient)?).during(what("a gradient"))?;
        }
        let mut averaged = step.finish().during(what("the end"))?;
        equal(what("the finite gradients"), averaged.is_finite().during(what("the check"))?, round < 4)?;
        if round == 4 {
            break;
        }
        let elements: usize = PARAMETERS.iter().sum();
        let norm = (elements as f64 * f64::from(average).powi(2)).sqrt();
        let clipped = averaged.clip_norm(norm / 2.0).during(what("the norm"))?;
        same_bits(what("the norm"), &[clipped], &[norm])?;
        for (index, len) in PARAMETERS.into_iter().enumerate() {
            let mut numbers = vec![0.0_f32; len];
            let view = averaged.view(index).during(what("an average"))?;
            Cuda::read(&comm, view, bytemuck::cast_slice_mut(&mut numbers))?;
            same_bits(what("the averages"), &numbers, &vec![average / 2.0; len])?;
        }
    }
    Ok(())
}
