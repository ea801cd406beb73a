//! Visits the parameters of a module along with their paths.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, Int, Tensor};

/// Reads parameters. A name is the path of a parameter in its module, as in `encoder.0.weight`.
pub(crate) trait ReadParameters {
    fn float<const D: usize>(&mut self, name: String, parameter: &Param<Tensor<D>>);
    fn int<const D: usize>(&mut self, _: String, _: &Param<Tensor<D, Int>>) {}
    fn bool<const D: usize>(&mut self, _: String, _: &Param<Tensor<D, Bool>>) {}
}

/// Replaces parameters.
pub(crate) trait ReplaceParameters {
    fn float<const D: usize>(&mut self, name: String, parameter: Param<Tensor<D>>) -> Param<Tensor<D>>;
    fn int<const D: usize>(
        &mut self,
        name: String,
        parameter: Param<Tensor<D, Int>>,
    ) -> Param<Tensor<D, Int>>;
    fn bool<const D: usize>(
        &mut self,
        name: String,
        parameter: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>>;
}

pub(crate) fn read<M: Module, R: ReadParameters>(module: &M, reader: &mut R) {
    module.visit(&mut Walk { path: Vec::new(), with: reader });
}

pub(crate) fn replace<M: Module, R: ReplaceParameters>(module: M, replacer: &mut R) -> M {
    module.map(&mut Walk { path: Vec::new(), with: replacer })
}

struct Walk<'w, W> {
    path: Vec<String>,
    with: &'w mut W,
}

impl<W> Walk<'_, W> {
    fn name(&self) -> String {
        self.path.join(".")
    }
}

impl<R: ReadParameters> ModuleVisitor for Walk<'_, R> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        self.with.float(self.name(), parameter);
    }

    fn visit_int<const D: usize>(&mut self, parameter: &Param<Tensor<D, Int>>) {
        self.with.int(self.name(), parameter);
    }

    fn visit_bool<const D: usize>(&mut self, parameter: &Param<Tensor<D, Bool>>) {
        self.with.bool(self.name(), parameter);
    }
}

impl<R: ReplaceParameters> ModuleMapper for Walk<'_, R> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.with.float(self.name(), parameter)
    }

    fn map_int<const D: usize>(&mut self, parameter: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.with.int(self.name(), parameter)
    }

    fn map_bool<const D: usize>(&mut self, parameter: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        self.with.bool(self.name(), parameter)
    }
}
