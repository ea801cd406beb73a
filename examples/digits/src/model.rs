//! A multilayer perceptron with its forward and backward pass.
//!
//! Backward writes gradients to memory of its caller, last layer first, so that they can be sent
//! while those of the layers below are computed.

use comm::ddp::{Step, ZeroStep};

use crate::{data::Batch, matmul::Matrix, optimizer::Update, real::Real};

/// Fully connected layers with rectified linear units between them. Computes one logit per class.
#[derive(Debug, Clone)]
pub struct Mlp<T> {
    layers: Vec<Layer<T>>,
}

/// A layer that computes outputs = inputs x weight + bias.
#[derive(Debug, Clone)]
struct Layer<T> {
    /// One row per input, one column per output.
    weight: Vec<T>,
    bias: Vec<T>,
}

/// The intermediate results of forward and backward. Memory is reused.
#[derive(Debug, Clone, Default)]
pub struct Pass<T> {
    /// The input of each layer; the last entry is the output of the last layer.
    activations: Vec<Vec<T>>,
    /// The gradient of the loss with respect to the outputs of the current layer, and to its
    /// inputs.
    delta: Vec<T>,
    delta_below: Vec<T>,
}

/// The memory to which backward writes gradients. Parameters are numbered in the order of
/// [`Mlp::parameters`].
pub trait Gradients<T> {
    /// The error of both methods.
    type Error;

    /// Returns the memory of the gradient of a parameter. Backward overwrites all of it.
    ///
    /// # Errors
    /// Defined by the implementation.
    fn memory(&mut self, index: usize) -> Result<&mut [T], Self::Error>;

    /// Marks the gradient of a parameter as written.
    ///
    /// # Errors
    /// Defined by the implementation.
    fn ready(&mut self, index: usize) -> Result<(), Self::Error>;
}

/// Gradients in the buckets of a step, which are sent as soon as they are complete.
impl<T: Real> Gradients<T> for Step<'_> {
    type Error = comm::ddp::Error;

    fn memory(&mut self, index: usize) -> Result<&mut [T], Self::Error> {
        self.overwrite(index)
    }

    fn ready(&mut self, index: usize) -> Result<(), Self::Error> {
        self.mark_ready(index)
    }
}

/// The same with a sharded optimizer.
impl<T: Real> Gradients<T> for ZeroStep<'_, T, Update> {
    type Error = comm::ddp::Error;

    fn memory(&mut self, index: usize) -> Result<&mut [T], Self::Error> {
        self.gradient_mut(index)
    }

    fn ready(&mut self, index: usize) -> Result<(), Self::Error> {
        self.mark_ready(index)
    }
}

/// A parameter: name, shape and numbers.
#[derive(Debug, Clone)]
pub struct Parameter<'a, T> {
    /// The name, such as `layer0.weight`.
    pub name: String,
    /// Rows and columns of a weight, or the length of a bias.
    pub shape: Vec<usize>,
    /// The numbers in row-major order.
    pub numbers: &'a [T],
}

impl<T: Real> Mlp<T> {
    /// Creates layers of these sizes: the inputs, the hidden units, and one output per class. Equal
    /// seeds give equal weights; those of `f32` are rounded from `f64`.
    #[must_use]
    pub fn new(sizes: &[usize], seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let layers =
            sizes.array_windows().map(|[inputs, outputs]| Layer::new(*inputs, *outputs, &mut random));
        Self { layers: layers.collect() }
    }

    /// Returns the parameters in the order of forward: weight and bias of each layer.
    pub fn parameters(&self) -> impl Iterator<Item = Parameter<'_, T>> {
        self.layers.iter().enumerate().flat_map(|(index, layer)| layer.parameters(index))
    }

    /// Returns the numbers of the parameters, in the order of [`Mlp::parameters`].
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut [T]> {
        self.layers.iter_mut().flat_map(|layer| [layer.weight.as_mut_slice(), layer.bias.as_mut_slice()])
    }

    /// Returns the logits of a batch: one row per image, one column per class.
    pub fn forward<'p>(&self, pass: &'p mut Pass<T>, batch: &Batch<T>) -> &'p [T] {
        let Pass { activations, .. } = pass;
        activations.resize_with(self.layers.len() + 1, Vec::new);
        activations[0].clone_from(&batch.pixels);
        for (index, layer) in self.layers.iter().enumerate() {
            if let [.., inputs, outputs] = &mut activations[..index + 2] {
                layer.forward(inputs, outputs);
                if index + 1 < self.layers.len() {
                    rectify(outputs);
                }
            }
        }
        &activations[self.layers.len()]
    }

    /// Runs forward and backward. Returns the mean loss of the batch, and writes the gradient of
    /// every parameter, last layer first.
    ///
    /// # Errors
    /// The first error of `gradients`.
    pub fn backward<G: Gradients<T>>(
        &self,
        pass: &mut Pass<T>,
        batch: &Batch<T>,
        gradients: &mut G,
    ) -> Result<T, G::Error> {
        self.forward(pass, batch);
        pass.delta.clone_from(&pass.activations[self.layers.len()]);
        let loss = softmax_cross_entropy(&mut pass.delta, &batch.labels);
        for (index, layer) in self.layers.iter().enumerate().rev() {
            pass.bias_gradient(gradients.memory(2 * index + 1)?);
            gradients.ready(2 * index + 1)?;
            pass.weight_gradient(index, layer, gradients.memory(2 * index)?);
            gradients.ready(2 * index)?;
            if index > 0 {
                pass.descend(index, layer);
            }
        }
        Ok(loss)
    }
}

impl<T: Real> Layer<T> {
    /// Initializes weights uniformly, with the variance of He et al. (2015), and biases with zeros.
    fn new(inputs: usize, outputs: usize, random: &mut fastrand::Rng) -> Self {
        let bound = (6.0 / inputs as f64).sqrt();
        let mut weight = || T::from_f64((2.0 * random.f64() - 1.0) * bound);
        Self { weight: (0..inputs * outputs).map(|_| weight()).collect(), bias: vec![T::zero(); outputs] }
    }

    fn parameters(&self, index: usize) -> [Parameter<'_, T>; 2] {
        let (inputs, outputs) = (self.inputs(), self.outputs());
        [("weight", vec![inputs, outputs], &self.weight), ("bias", vec![outputs], &self.bias)]
            .map(|(name, shape, numbers)| Parameter { name: format!("layer{index}.{name}"), shape, numbers })
    }

    fn inputs(&self) -> usize {
        self.weight.len() / self.outputs()
    }

    fn outputs(&self) -> usize {
        self.bias.len()
    }

    fn weight(&self) -> Matrix<'_, T> {
        Matrix::new(&self.weight, self.outputs())
    }

    fn forward(&self, inputs: &[T], outputs: &mut Vec<T>) {
        let images = inputs.len() / self.inputs();
        outputs.resize(images * self.outputs(), T::zero());
        T::multiply(Matrix::new(inputs, self.inputs()), self.weight(), outputs);
        for row in outputs.chunks_exact_mut(self.outputs()) {
            for (output, &bias) in row.iter_mut().zip(&self.bias) {
                *output += bias;
            }
        }
    }
}

impl<T: Real> Pass<T> {
    /// Computes the gradient of a bias from the gradient of the outputs.
    fn bias_gradient(&self, gradient: &mut [T]) {
        gradient.fill(T::zero());
        for row in self.delta.chunks_exact(gradient.len()) {
            for (sum, &slope) in gradient.iter_mut().zip(row) {
                *sum += slope;
            }
        }
    }

    /// Computes the gradient of a weight from the gradient of the outputs.
    fn weight_gradient(&self, index: usize, layer: &Layer<T>, gradient: &mut [T]) {
        let inputs = Matrix::new(&self.activations[index], layer.inputs());
        T::multiply(inputs.transposed(), Matrix::new(&self.delta, layer.outputs()), gradient);
    }

    /// Computes the gradient of the inputs from the gradient of the outputs.
    fn descend(&mut self, index: usize, layer: &Layer<T>) {
        let inputs = &self.activations[index];
        self.delta_below.resize(inputs.len(), T::zero());
        T::multiply(
            Matrix::new(&self.delta, layer.outputs()),
            layer.weight().transposed(),
            &mut self.delta_below,
        );
        for (slope, &input) in self.delta_below.iter_mut().zip(inputs) {
            if input <= T::zero() {
                *slope = T::zero();
            }
        }
        std::mem::swap(&mut self.delta, &mut self.delta_below);
    }
}

fn rectify<T: Real>(numbers: &mut [T]) {
    for number in numbers {
        *number = number.max(T::zero());
    }
}

/// Returns the mean of -log(softmax(logits)[label]), and replaces the logits by its gradient.
fn softmax_cross_entropy<T: Real>(logits: &mut [T], labels: &[u8]) -> T {
    let (Some(classes), images) = (logits.len().checked_div(labels.len()), labels.len()) else {
        return T::zero();
    };
    let share = T::one() / T::from_f64(images as f64);
    let mut loss = T::zero();
    for (row, &label) in logits.chunks_exact_mut(classes).zip(labels) {
        // Without the shift, exp overflows for large logits.
        let largest = row.iter().copied().fold(T::neg_infinity(), T::max);
        row.iter_mut().for_each(|logit| *logit -= largest);
        let right = row[usize::from(label)];
        row.iter_mut().for_each(|logit| *logit = logit.exp());
        let total: T = row.iter().copied().sum();
        loss += (total.ln() - right) * share;
        row.iter_mut().for_each(|slope| *slope = *slope / total * share);
        row[usize::from(label)] -= share;
    }
    loss
}

/// Returns the number of rows whose largest logit belongs to the label.
#[must_use]
pub fn count_correct<T: Real>(logits: &[T], labels: &[u8]) -> u64 {
    let Some(classes) = logits.len().checked_div(labels.len()) else { return 0 };
    let hit = |(row, &label): (&[T], &u8)| {
        let right = row[usize::from(label)];
        row.iter().enumerate().all(|(class, &logit)| class == usize::from(label) || logit < right)
    };
    logits.chunks_exact(classes).zip(labels).map(|pair| u64::from(hit(pair))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{CLASSES, Images, PIXELS};

    fn batch(images: usize) -> Batch<f64> {
        let mut batch = Batch::default();
        Images::training().fill(&mut batch, (0..images).map(|index| index * 7));
        batch
    }

    /// Records gradients and the order in which they were written. Can refuse one of them.
    struct Recorded {
        memory: Vec<Vec<f64>>,
        order: Vec<usize>,
        refused: Option<usize>,
    }

    impl Recorded {
        fn new(model: &Mlp<f64>) -> Self {
            let memory = model.parameters().map(|parameter| vec![f64::NAN; parameter.numbers.len()]);
            Self { memory: memory.collect(), order: Vec::new(), refused: None }
        }
    }

    impl Gradients<f64> for Recorded {
        type Error = &'static str;

        fn memory(&mut self, index: usize) -> Result<&mut [f64], &'static str> {
            if self.refused == Some(index) { Err("full") } else { Ok(&mut self.memory[index]) }
        }

        fn ready(&mut self, index: usize) -> Result<(), &'static str> {
            self.order.push(index);
            Ok(())
        }
    }

    fn loss(model: &Mlp<f64>, batch: &Batch<f64>) -> f64 {
        model.backward(&mut Pass::default(), batch, &mut Recorded::new(model)).unwrap()
    }

    fn gradients(model: &Mlp<f64>, batch: &Batch<f64>) -> Recorded {
        let mut gradients = Recorded::new(model);
        model.backward(&mut Pass::default(), batch, &mut gradients).unwrap();
        gradients
    }

    /// Returns the central difference of the loss with respect to one weight.
    fn slope(model: &Mlp<f64>, batch: &Batch<f64>, parameter: usize, at: usize) -> f64 {
        const STEP: f64 = 1e-6;
        let shifted_loss = |shift: f64| {
            let mut shifted = model.clone();
            let numbers = shifted.parameters_mut().nth(parameter).expect("the model has this parameter");
            numbers[at] += shift;
            loss(&shifted, batch)
        };
        (shifted_loss(STEP) - shifted_loss(-STEP)) / (2.0 * STEP)
    }

    #[test]
    fn gradients_are_the_slopes_of_the_loss() {
        let model = Mlp::<f64>::new(&[PIXELS, 9, 7, CLASSES], 3);
        let batch = batch(5);
        for (parameter, gradient) in gradients(&model, &batch).memory.into_iter().enumerate() {
            for (at, &claimed) in gradient.iter().enumerate() {
                let measured = slope(&model, &batch, parameter, at);
                let error = (claimed - measured).abs();
                assert!(error < 1e-7, "parameter {parameter}[{at}]: {claimed} is not {measured}");
            }
        }
    }

    #[test]
    fn gradients_come_last_layer_first_and_once() {
        let model = Mlp::<f64>::new(&[PIXELS, 9, 7, CLASSES], 3);
        assert_eq!(gradients(&model, &batch(5)).order, [5, 4, 3, 2, 1, 0]);
    }

    #[test]
    fn parameters_have_names_and_shapes() {
        let model = Mlp::<f32>::new(&[PIXELS, 9, CLASSES], 0);
        let described: Vec<_> = model.parameters().map(|p| (p.name, p.shape, p.numbers.len())).collect();
        let expected = [
            ("layer0.weight".to_owned(), vec![64, 9], 576),
            ("layer0.bias".to_owned(), vec![9], 9),
            ("layer1.weight".to_owned(), vec![9, 10], 90),
            ("layer1.bias".to_owned(), vec![10], 10),
        ];
        assert_eq!(described, expected);
    }

    #[test]
    fn backward_stops_at_the_first_error() {
        let model = Mlp::<f64>::new(&[PIXELS, 9, CLASSES], 0);
        let mut gradients = Recorded { refused: Some(2), ..Recorded::new(&model) };
        let outcome = model.backward(&mut Pass::default(), &batch(2), &mut gradients);
        assert_eq!((outcome, gradients.order), (Err("full"), vec![3]));
    }

    #[test]
    fn huge_logits_do_not_overflow() {
        let mut logits = [1e4_f64, -1e4];
        assert_eq!(softmax_cross_entropy(&mut logits, &[0]), 0.0);
        assert_eq!(logits, [0.0, 0.0]);
        let mut logits = [1e4_f64, -1e4];
        assert_eq!(softmax_cross_entropy(&mut logits, &[1]), 2e4);
        assert_eq!(logits, [1.0, -1.0]);
    }

    #[test]
    fn a_tie_is_not_a_hit() {
        assert_eq!(count_correct(&[0.5, 0.5, 0.1, 0.2_f32], &[0, 1]), 1);
        assert_eq!(count_correct::<f32>(&[], &[]), 0);
    }
}
