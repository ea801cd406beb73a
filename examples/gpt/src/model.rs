//! The model: a decoder-only transformer with normalization before each part of a block.
//!
//! It has only operations with a backward: candle's fast `rms_norm`, `softmax_last_dim` and `rope`
//! have none, and would leave the parameters before them untrained without an error.

use candle_core::{D, Tensor};
use candle_nn::{Embedding, Init, Linear, Module, VarBuilder, ops};

use crate::Result;
use crate::data::BYTES;

/// The standard deviation of initial weights (Radford et al., GPT-2, 2019).
const DEVIATION: f64 = 0.02;

const EPSILON: f32 = 1e-5;

/// The size of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Size {
    /// The number of blocks.
    pub layers: usize,
    /// The number of heads of attention, a divisor of the width.
    pub heads: usize,
    /// The numbers per byte between blocks.
    pub width: usize,
    /// The number of bytes that a prediction may depend on.
    pub context: usize,
}

/// A language model of bytes.
#[derive(Debug)]
pub struct Gpt {
    bytes: Embedding,
    positions: Tensor,
    blocks: Vec<Block>,
    norm: Norm,
    output: Linear,
}

#[derive(Debug)]
struct Block {
    attention_norm: Norm,
    attention: Attention,
    mlp_norm: Norm,
    up: Linear,
    down: Linear,
}

/// Attention of each byte to itself and those before it.
#[derive(Debug)]
struct Attention {
    heads: usize,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    /// Minus infinity for the bytes after each byte, 0 for the others.
    mask: Tensor,
}

/// Root mean square normalization (Zhang and Sennrich, 2019).
#[derive(Debug)]
struct Norm {
    weight: Tensor,
}

impl Gpt {
    /// Creates a model with parameters of a builder.
    ///
    /// # Errors
    /// If candle cannot create the tensors, as with a width that is no multiple of the heads.
    pub fn new(size: Size, builder: &VarBuilder<'_>) -> Result<Self> {
        let Size { layers, width, context, .. } = size;
        let random = Init::Randn { mean: 0.0, stdev: DEVIATION };
        let bytes = builder.get_with_hints((BYTES, width), "bytes", random)?;
        let mask = mask(context, builder)?;
        let block = |layer| Block::new(size, &mask, &builder.pp(format!("block{layer}")));
        Ok(Self {
            bytes: Embedding::new(bytes, width),
            positions: builder.get_with_hints((context, width), "positions", random)?,
            blocks: (0..layers).map(block).collect::<Result<_>>()?,
            norm: Norm::new(width, &builder.pp("norm"))?,
            output: linear((width, BYTES), DEVIATION, &builder.pp("output"))?,
        })
    }

    /// Returns the logits of the byte after each one. `bytes` has shape (windows, length), with at
    /// most as many bytes as the context; the result has shape (windows * length, 256).
    ///
    /// # Errors
    /// If candle cannot compute, as with longer windows.
    pub fn forward(&self, bytes: &Tensor) -> Result<Tensor> {
        let (windows, length) = bytes.dims2()?;
        let positions = self.positions.narrow(0, 0, length)?;
        let mut hidden = self.bytes.forward(bytes)?.broadcast_add(&positions)?;
        for block in &self.blocks {
            hidden = block.forward(&hidden)?;
        }
        let hidden = self.norm.forward(&hidden)?;
        Ok(self.output.forward(&hidden)?.reshape((windows * length, BYTES))?)
    }
}

impl Block {
    fn new(size: Size, mask: &Tensor, builder: &VarBuilder<'_>) -> Result<Self> {
        let Size { layers, heads, width, .. } = size;
        // Each block adds twice to the hidden state, whose variance would grow with their number.
        let residual = DEVIATION / ((2 * layers) as f64).sqrt();
        let square = |name: &str, deviation| linear((width, width), deviation, &builder.pp(name));
        Ok(Self {
            attention_norm: Norm::new(width, &builder.pp("attention_norm"))?,
            attention: Attention {
                heads,
                query: square("query", DEVIATION)?,
                key: square("key", DEVIATION)?,
                value: square("value", DEVIATION)?,
                output: square("attended", residual)?,
                mask: mask.clone(),
            },
            mlp_norm: Norm::new(width, &builder.pp("mlp_norm"))?,
            up: linear((width, 4 * width), DEVIATION, &builder.pp("up"))?,
            down: linear((4 * width, width), residual, &builder.pp("down"))?,
        })
    }

    fn forward(&self, hidden: &Tensor) -> Result<Tensor> {
        let attended = self.attention.forward(&self.attention_norm.forward(hidden)?)?;
        let hidden = (hidden + attended)?;
        // The square of relu (So et al., Primer, 2021); gelu would take a third of the time of a
        // step on a processor.
        let up = self.up.forward(&self.mlp_norm.forward(&hidden)?)?.relu()?.sqr()?;
        Ok((&hidden + self.down.forward(&up)?)?)
    }
}

impl Attention {
    fn forward(&self, hidden: &Tensor) -> Result<Tensor> {
        let (windows, length, width) = hidden.dims3()?;
        let depth = width / self.heads;
        let by_head = |linear: &Linear| -> Result<Tensor> {
            let all = linear.forward(hidden)?.reshape((windows, length, self.heads, depth))?;
            Ok(all.transpose(1, 2)?.contiguous()?)
        };
        let query = (by_head(&self.query)? * (depth as f64).powf(-0.5))?;
        let scores = query.matmul(&by_head(&self.key)?.t()?)?;
        let mask = self.mask.narrow(0, 0, length)?.narrow(1, 0, length)?;
        let weights = ops::softmax(&scores.broadcast_add(&mask)?, D::Minus1)?;
        let mixed = weights.matmul(&by_head(&self.value)?)?.transpose(1, 2)?;
        Ok(self.output.forward(&mixed.reshape((windows, length, width))?)?)
    }
}

impl Norm {
    fn new(width: usize, builder: &VarBuilder<'_>) -> Result<Self> {
        Ok(Self { weight: builder.get_with_hints(width, "weight", Init::Const(1.0))? })
    }

    fn forward(&self, hidden: &Tensor) -> Result<Tensor> {
        Ok(ops::rms_norm_slow(hidden, &self.weight, EPSILON)?)
    }
}

/// Creates a layer without bias from inputs to outputs.
fn linear((inputs, outputs): (usize, usize), deviation: f64, builder: &VarBuilder<'_>) -> Result<Linear> {
    let random = Init::Randn { mean: 0.0, stdev: deviation };
    Ok(Linear::new(builder.get_with_hints((outputs, inputs), "weight", random)?, None))
}

fn mask(context: usize, builder: &VarBuilder<'_>) -> Result<Tensor> {
    let value = |at: usize| if at % context > at / context { f32::NEG_INFINITY } else { 0.0 };
    let values: Vec<f32> = (0..context * context).map(value).collect();
    Ok(Tensor::from_vec(values, (context, context), builder.device())?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use candle_nn::VarMap;

    use super::*;
    use crate::initial;

    const SIZE: Size = Size { layers: 2, heads: 2, width: 8, context: 6 };

    fn logits(model: &Gpt, bytes: &[u32]) -> Vec<Vec<f32>> {
        let bytes = Tensor::from_slice(bytes, (1, bytes.len()), &Device::Cpu).unwrap();
        model.forward(&bytes).unwrap().to_vec2().unwrap()
    }

    fn model() -> Gpt {
        Gpt::new(SIZE, &initial::builder(&VarMap::new(), 3)).unwrap()
    }

    #[test]
    fn a_prediction_does_not_depend_on_later_bytes() {
        let model = model();
        let (one, other) = (logits(&model, &[7, 1, 200, 4, 9, 9]), logits(&model, &[7, 1, 200, 5, 0, 3]));
        assert_eq!(one[..3], other[..3]);
        assert!((3..6).all(|at| one[at] != other[at]));
        assert_eq!(logits(&model, &[7, 1, 200])[..], one[..3], "a short window");
    }

    #[test]
    fn a_prediction_depends_on_all_bytes_before_it_and_their_order() {
        let model = model();
        let last = |bytes: [u32; 6]| logits(&model, &bytes)[5].clone();
        let found = last([1, 2, 3, 4, 5, 6]);
        for at in 0..6 {
            let mut bytes = [1, 2, 3, 4, 5, 6];
            bytes[at] = 99;
            assert_ne!(last(bytes), found, "byte {at}");
        }
        assert_ne!(last([2, 1, 3, 4, 5, 6]), found);
    }

    #[test]
    fn a_window_does_not_depend_on_others() {
        let model = model();
        let both = Tensor::new(&[[1_u32, 2, 3], [4, 5, 6]], &Device::Cpu).unwrap();
        let both: Vec<Vec<f32>> = model.forward(&both).unwrap().to_vec2().unwrap();
        let near = |one: &[f32], other: &[f32]| one.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-6);
        for (at, alone) in logits(&model, &[4, 5, 6]).iter().enumerate() {
            assert!(near(&both[3 + at], alone));
        }
    }
}
