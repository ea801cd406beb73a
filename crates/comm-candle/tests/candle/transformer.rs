//! A small transformer, as candle's users write it.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{
    Activation, Embedding, LayerNorm, Linear, Module, VarBuilder, VarMap, embedding, layer_norm, linear,
    loss, ops,
};
use comm_candle::Segments;

pub(crate) const TOKENS: usize = 11;
pub(crate) const LENGTH: usize = 5;
const WIDTH: usize = 8;

/// The variants of normalization and softmax.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operations {
    /// The natural ones, without backward.
    Fast,
    Slow,
}

pub(crate) struct Transformer {
    pub(crate) variables: VarMap,
    operations: Operations,
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

struct Block {
    norms: [LayerNorm; 2],
    attention: [Linear; 2],
    mlp: [Linear; 2],
}

impl Transformer {
    /// Two blocks, and 30 variables. All ranks have the same values.
    pub(crate) fn new(operations: Operations, dtype: DType) -> Result<Self> {
        let variables = VarMap::new();
        let builder = VarBuilder::from_varmap(&variables, dtype, &Device::Cpu);
        let model = Self {
            tokens: embedding(TOKENS, WIDTH, builder.pp("tokens"))?,
            positions: embedding(LENGTH, WIDTH, builder.pp("positions"))?,
            blocks: (0..2)
                .map(|at| Block::new(&builder.pp(format!("blocks.{at}"))))
                .collect::<Result<_>>()?,
            norm: layer_norm(WIDTH, 1e-5, builder.pp("norm"))?,
            head: linear(WIDTH, TOKENS, builder.pp("head"))?,
            variables: variables.clone(),
            operations,
        };
        for (name, var) in variables.data().lock().unwrap().iter() {
            let seed = name.bytes().fold(7, |seed, byte| seed * 31 % 10_007 + usize::from(byte));
            let value = |at: usize| ((seed + at * 7919) as f64 * 0.618).sin() / 2.0;
            let values: Vec<f64> = (0..var.elem_count()).map(value).collect();
            var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?.to_dtype(dtype)?)?;
        }
        Ok(model)
    }

    /// The mean loss of a batch that is different in each step and on each rank.
    pub(crate) fn loss(&self, step: usize, rank: usize) -> Result<Tensor> {
        self.forward(step, rank, Ok)
    }

    /// The same loss, with a segment per block.
    pub(crate) fn cut_loss(&self, step: usize, rank: usize) -> Result<(Tensor, Segments)> {
        let mut segments = Segments::new();
        let loss = self.forward(step, rank, |stream| segments.cut(&stream))?;
        Ok((loss, segments))
    }

    fn forward(
        &self,
        step: usize,
        rank: usize,
        mut cut: impl FnMut(Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let token = |at: usize| ((step * 131 + rank * 17 + at * at * 5 + at) % TOKENS) as u32;
        let batch: Vec<u32> = (0..3 * (LENGTH + 1)).map(token).collect();
        let batch = Tensor::from_vec(batch, (3, LENGTH + 1), &Device::Cpu)?;
        let input = batch.narrow(1, 0, LENGTH)?.contiguous()?;
        let target = batch.narrow(1, 1, LENGTH)?.flatten_all()?;
        let places = Tensor::arange(0, LENGTH as u32, &Device::Cpu)?;
        let mut stream = self.tokens.forward(&input)?.broadcast_add(&self.positions.forward(&places)?)?;
        for block in &self.blocks {
            stream = cut(stream)?;
            stream = block.forward(&stream, self.operations)?;
        }
        stream = cut(stream)?;
        let logits = self.head.forward(&normalize(&self.norm, &stream, self.operations)?)?;
        loss::cross_entropy(&logits.flatten_to(1)?, &target)
    }
}

impl Block {
    fn new(builder: &VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            norms: [
                layer_norm(WIDTH, 1e-5, builder.pp("norm1"))?,
                layer_norm(WIDTH, 1e-5, builder.pp("norm2"))?,
            ],
            attention: [
                linear(WIDTH, 3 * WIDTH, builder.pp("qkv"))?,
                linear(WIDTH, WIDTH, builder.pp("proj"))?,
            ],
            mlp: [linear(WIDTH, 2 * WIDTH, builder.pp("up"))?, linear(2 * WIDTH, WIDTH, builder.pp("down"))?],
        })
    }

    fn forward(&self, input: &Tensor, operations: Operations) -> Result<Tensor> {
        let all = self.attention[0].forward(&normalize(&self.norms[0], input, operations)?)?;
        let part = |at: usize| all.narrow(D::Minus1, at * WIDTH, WIDTH)?.contiguous();
        let (query, key, value) = (part(0)?, part(1)?, part(2)?);
        let scores = (query.matmul(&key.t()?)? / (WIDTH as f64).sqrt())?;
        let weights = match operations {
            Operations::Fast => ops::softmax_last_dim(&scores)?,
            Operations::Slow => ops::softmax(&scores, D::Minus1)?,
        };
        let stream = (input + self.attention[1].forward(&weights.matmul(&value)?)?)?;
        let inner = self.mlp[0].forward(&normalize(&self.norms[1], &stream, operations)?)?;
        &stream + self.mlp[1].forward(&Activation::Relu.forward(&inner)?)?
    }
}

fn normalize(norm: &LayerNorm, input: &Tensor, operations: Operations) -> Result<Tensor> {
    match (operations, norm.bias()) {
        (Operations::Slow, Some(bias)) => ops::layer_norm_slow(input, norm.weight(), bias, 1e-5),
        _ => norm.forward(input),
    }
}
