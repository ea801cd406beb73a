//! Linear layers that are divided among the ranks of a group (Shoeybi et al., Megatron-LM, 2019).

use candle_core::{Result as CandleResult, Tensor};
use candle_nn::{Init, Linear, Module, VarBuilder, init};
use comm_core::Comm;

use crate::Result;
use crate::collectives::{check_divisible, copy_to_group, reduce_from_group};

/// A linear layer whose outputs are divided among the ranks.
///
/// Its input is the same on all ranks, and its output has this rank's part of the features.
/// Followed by an activation and a [`RowParallelLinear`], it forms a perceptron that the group
/// computes with one all-reduce in forward and one in backward. All ranks compute the same loss.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{Module, VarBuilder, VarMap, linear};
/// use comm_candle::{ColumnParallelLinear, Result, RowParallelLinear};
///
/// let (variables, device) = (VarMap::new(), Device::Cpu);
/// let builder = VarBuilder::from_varmap(&variables, DType::F32, &device);
/// let (up, down) = (linear(4, 8, builder.pp("up"))?, linear(8, 4, builder.pp("down"))?);
/// let input = Tensor::arange(0_f32, 12.0, &device)?.reshape((3, 4))?;
/// let whole = down.forward(&up.forward(&input)?.relu()?)?;
/// comm::threads::run(2, |comm| -> Result<()> {
///     let up = ColumnParallelLinear::part_of(&up, &comm)?;
///     let down = RowParallelLinear::part_of(&down, &comm)?;
///     let parallel = down.forward(&up.forward(&input)?.relu()?)?;
///     let difference = (parallel - &whole)?.abs()?.flatten_all()?.max(0)?;
///     assert!(difference.to_scalar::<f32>()? < 1e-4);
///     Ok(())
/// })?
/// .into_iter()
/// .collect::<Result<Vec<()>>>()?;
/// # Ok::<_, comm_candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ColumnParallelLinear {
    linear: Linear,
    comm: Comm,
}

impl ColumnParallelLinear {
    /// Creates a layer from this rank's rows of the weight, whose shape is `[outputs / size,
    /// inputs]`, and its part of the bias.
    #[must_use]
    pub fn new(weight: Tensor, bias: Option<Tensor>, comm: &Comm) -> Self {
        Self { linear: Linear::new(weight, bias), comm: comm.clone() }
    }

    /// Creates a layer from a whole one, which is the same on all ranks. The tensors of the whole
    /// layer get the gradients of this rank's part.
    ///
    /// # Errors
    /// [`Error::Indivisible`](crate::Error::Indivisible) if the outputs are not a multiple of the
    /// number of ranks; [`Error::Candle`](crate::Error::Candle).
    pub fn part_of(whole: &Linear, comm: &Comm) -> Result<Self> {
        let weight = part(whole.weight(), 0, comm)?;
        let bias = whole.bias().map(|bias| part(bias, 0, comm)).transpose()?;
        Ok(Self::new(weight, bias, comm))
    }

    /// Returns this rank's rows of the weight.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        self.linear.weight()
    }

    /// Returns this rank's part of the bias.
    #[must_use]
    pub fn bias(&self) -> Option<&Tensor> {
        self.linear.bias()
    }
}

impl Module for ColumnParallelLinear {
    fn forward(&self, input: &Tensor) -> CandleResult<Tensor> {
        self.linear.forward(&copy_to_group(input, &self.comm)?)
    }
}

/// A linear layer whose inputs are divided among the ranks.
///
/// Its input is this rank's part of the features, as returned by a [`ColumnParallelLinear`], and
/// its output is the same on all ranks. The bias, which every rank has, is added once, after the
/// sum.
#[derive(Debug, Clone)]
pub struct RowParallelLinear {
    linear: Linear,
    bias: Option<Tensor>,
    comm: Comm,
}

impl RowParallelLinear {
    /// Creates a layer from this rank's columns of the weight, whose shape is `[outputs, inputs /
    /// size]`, and the whole bias, which is the same on all ranks.
    #[must_use]
    pub fn new(weight: Tensor, bias: Option<Tensor>, comm: &Comm) -> Self {
        Self { linear: Linear::new(weight, None), bias, comm: comm.clone() }
    }

    /// Creates a layer from a whole one, like [`ColumnParallelLinear::part_of`].
    ///
    /// # Errors
    /// As [`ColumnParallelLinear::part_of`], for the inputs.
    pub fn part_of(whole: &Linear, comm: &Comm) -> Result<Self> {
        Ok(Self::new(part(whole.weight(), 1, comm)?, whole.bias().cloned(), comm))
    }

    /// Returns this rank's columns of the weight.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        self.linear.weight()
    }

    /// Returns the bias.
    #[must_use]
    pub const fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }
}

impl Module for RowParallelLinear {
    fn forward(&self, input: &Tensor) -> CandleResult<Tensor> {
        let sum = reduce_from_group(&self.linear.forward(input)?, &self.comm)?;
        self.bias.as_ref().map_or_else(|| Ok(sum.clone()), |bias| sum.broadcast_add(bias))
    }
}

/// Creates a [`ColumnParallelLinear`] with the variables `weight` and `bias` for this rank's part.
/// They are initialized as by [`candle_nn::linear()`], with different numbers on each rank.
///
/// # Errors
/// [`Error::Indivisible`](crate::Error::Indivisible) if the outputs are not a multiple of the
/// number of ranks; [`Error::Candle`](crate::Error::Candle).
pub fn column_parallel_linear(
    inputs: usize,
    outputs: usize,
    builder: &VarBuilder<'_>,
    comm: &Comm,
) -> Result<ColumnParallelLinear> {
    check_divisible("number of outputs", outputs, comm.size())?;
    let part = outputs / comm.size();
    let weight = builder.get_with_hints((part, inputs), "weight", init::DEFAULT_KAIMING_NORMAL)?;
    let bound = 1.0 / (inputs as f64).sqrt();
    let bias = builder.get_with_hints(part, "bias", Init::Uniform { lo: -bound, up: bound })?;
    Ok(ColumnParallelLinear::new(weight, Some(bias), comm))
}

/// Creates a [`RowParallelLinear`] with the variables `weight`, for this rank's part, and `bias`.
/// The weight is initialized as by [`candle_nn::linear()`], with different numbers on each rank.
/// The bias is zero, because it must be the same on all ranks.
///
/// # Errors
/// As [`column_parallel_linear`], for the inputs.
pub fn row_parallel_linear(
    inputs: usize,
    outputs: usize,
    builder: &VarBuilder<'_>,
    comm: &Comm,
) -> Result<RowParallelLinear> {
    check_divisible("number of inputs", inputs, comm.size())?;
    // The deviation depends on all inputs of a sum, not only on this rank's.
    let weight = Init::Randn { mean: 0.0, stdev: (2.0 / inputs as f64).sqrt() };
    let weight = builder.get_with_hints((outputs, inputs / comm.size()), "weight", weight)?;
    let bias = builder.get_with_hints(outputs, "bias", init::ZERO)?;
    Ok(RowParallelLinear::new(weight, Some(bias), comm))
}

/// Returns this rank's part of a tensor along a dimension.
fn part(tensor: &Tensor, dim: usize, comm: &Comm) -> Result<Tensor> {
    let len = tensor.dim(dim)?;
    check_divisible(if dim == 0 { "number of outputs" } else { "number of inputs" }, len, comm.size())?;
    let len = len / comm.size();
    Ok(tensor.narrow(dim, len * comm.rank(), len)?.contiguous()?)
}
