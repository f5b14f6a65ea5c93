// Activations by number, as gpu/select.py numbers them: 0 none, 1 gelu_new, 2 gelu, 3 relu, 4 silu.

// erf by Abramowitz & Stegun 7.1.26, |error| <= 1.5e-7.
fn erf(x: f32) -> f32 {
  let t = 1.0 / (1.0 + 0.3275911 * abs(x));
  let series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return sign(x) * (1.0 - series * exp(-x * x));
}

fn activate(x: f32) -> f32 {
  switch ACTIVATION {
    case 1u: {
      // Some implementations compute tanh as a quotient of exponentials, which is NaN for large arguments.
      let inner = clamp(0.7978845608028654 * (x + 0.044715 * x * x * x), -15.0, 15.0);
      return 0.5 * x * (1.0 + tanh(inner));
    }
    case 2u: { return 0.5 * x * (1.0 + erf(x * 0.7071067811865476)); }
    case 3u: { return max(x, 0.0); }
    case 4u: { return x / (1.0 + exp(min(-x, 80.0))); }
    default: { return x; }
  }
}
