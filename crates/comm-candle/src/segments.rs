//! Backward in segments, so that gradients are averaged while it runs.

use std::collections::{HashMap, HashSet};

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, TensorId, Var};

use crate::variables::Variable;

/// The places at which the graph of a forward pass is cut, so that its backward runs in segments.
///
/// candle's backward returns all gradients at its end. If it is cut into segments, it returns those
/// of the last segment first, and their communication overlaps with the backward of the others:
/// [`DataParallel::backward`](crate::DataParallel::backward) and
/// [`ZeroOptimizer::backward_step`](crate::ZeroOptimizer::backward_step). A few segments of equal
/// cost suffice, for example one per block of a transformer.
///
/// The forward pass calls [`Segments::cut`] between two layers and continues with the tensor that
/// it returns. candle's own backward of such a loss would end at the last cut. Each cut costs a
/// copy of its tensor. If all paths from one segment to the next lead through one cut, gradients
/// have the same bits as in an uncut backward. The exception is a variable that is used in several
/// segments and several times in an earlier one, for which the order of additions differs. A path
/// around a cut, such as a skip connection that uses the tensor before the cut, also gives correct
/// gradients, but the order of additions differs and there is less overlap.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{Linear, Module, VarBuilder, VarMap, linear};
/// use comm_candle::{DataParallel, Result, Segments};
///
/// comm::threads::run(2, |comm| -> Result<()> {
///     let variables = VarMap::new();
///     let builder = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
///     let layer = |at: usize| linear(16, 16, builder.pp(format!("layers.{at}")));
///     let layers: Vec<Linear> = (0..3).map(layer).collect::<candle_core::Result<_>>()?;
///     let mut replicas = DataParallel::new(&variables, &comm)?;
///     replicas.sync_model()?;
///
///     let mut segments = Segments::new();
///     let mut hidden = Tensor::full(comm.rank() as f32, (4, 16), &Device::Cpu)?;
///     for layer in &layers {
///         hidden = layer.forward(&segments.cut(&hidden)?)?;
///     }
///     let (gradients, _) = replicas.backward(&hidden.sqr()?.mean_all()?, segments)?;
///     assert!(layers.iter().all(|layer| gradients.get(layer.weight()).is_some()));
///     Ok(())
/// })?
/// .into_iter()
/// .collect::<Result<Vec<()>>>()?;
/// # Ok::<_, comm_candle::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Segments {
    cuts: Vec<Cut>,
}

#[derive(Debug)]
struct Cut {
    /// The end of a segment.
    end: Tensor,
    /// The same values, the start of the next segment. It is a variable, so that backward returns
    /// its gradient.
    start: Var,
}

/// A variable in the backward pass, by its position.
pub(crate) enum Event<'g> {
    /// The loss does not depend on it.
    Unused(usize),
    /// Its gradient is complete.
    Ready(usize, &'g Tensor),
}

impl Segments {
    /// Creates the segments of a forward pass that is about to begin.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends a segment with a tensor and returns the tensor with which the next one continues: the
    /// same values, shape and type in other memory. A tensor that depends on no variable is
    /// returned itself.
    ///
    /// # Errors
    /// The error of candle if there is not enough memory.
    pub fn cut(&mut self, tensor: &Tensor) -> Result<Tensor> {
        if !tensor.track_op() {
            return Ok(tensor.clone());
        }
        let start = Var::from_tensor(&tensor.detach())?;
        let next = start.as_tensor().clone();
        self.cuts.push(Cut { end: tensor.clone(), start });
        Ok(next)
    }

    /// Runs backward and returns all gradients. `notify` is called once for each variable: before
    /// backward if the loss does not use it, and otherwise as soon as its gradient is complete.
    pub(crate) fn backward(
        self,
        loss: &Tensor,
        variables: &[Variable],
        mut notify: impl FnMut(Event<'_>) -> crate::Result<()>,
    ) -> crate::Result<GradStore> {
        let mut last = self.last_segments(loss, variables);
        let unused: Vec<usize> =
            (0..variables.len()).filter(|at| !last.contains_key(&variables[*at].var.id())).collect();
        unused.into_iter().try_for_each(|at| notify(Event::Unused(at)))?;
        let mut gradients = loss.backward()?;
        let mut cuts = self.cuts.into_iter().rev();
        for segment in 0.. {
            // In reverse, the order in which buckets are filled.
            for (at, variable) in variables.iter().enumerate().rev() {
                if last.get(&variable.var.id()) != Some(&segment) {
                    continue;
                }
                last.remove(&variable.var.id());
                if let Some(gradient) = gradients.get(&variable.var) {
                    notify(Event::Ready(at, gradient))?;
                }
            }
            let Some(Cut { end, start }) = cuts.next() else { break };
            // There is no gradient if the loss does not depend on this tensor.
            if let Some(gradient) = gradients.remove(&start) {
                // The gradient itself has a graph, through the segments after this one.
                let gradient = gradient.detach();
                // The derivative of this sum with respect to `end` is `gradient`, to the bit.
                let sum = (end * &gradient)?.sum_all()?;
                let mut more = sum.backward()?;
                more.remove(&gradient);
                gradients.extend(more)?;
            }
        }
        Ok(gradients)
    }

    /// Returns the last segment of backward, counted from the loss, in which each variable is used.
    fn last_segments(&self, loss: &Tensor, variables: &[Variable]) -> HashMap<TensorId, usize> {
        let starts = self.cuts.iter().rev().map(|cut| cut.start.id()).collect::<Vec<_>>();
        let mut last: HashMap<TensorId, usize> = HashMap::new();
        let ends = std::iter::once(loss).chain(self.cuts.iter().rev().map(|cut| &cut.end));
        for (segment, end) in ends.enumerate() {
            if segment > 0 && !last.contains_key(&starts[segment - 1]) {
                continue;
            }
            let nodes = end.sorted_nodes().into_iter().filter(|node| node.is_variable());
            last.extend(nodes.map(|node| (node.id(), segment)));
        }
        let known: HashSet<TensorId> = variables.iter().map(|variable| variable.var.id()).collect();
        last.retain(|id, _| known.contains(id));
        last
    }
}
