// The few functions that would cost one FFI call a dispatch, or a proxy a number, if Python made them itself.
// The engine imports this module as `tabgpt_gpu`; whoever boots Pyodide registers it (see worker.js). No model logic here.

/**
 * A recorded list of dispatches. `perRow` and `perPosition` hold a tile where y depends on the step, else 0.
 * @typedef {{pipelines: GPUComputePipeline[], groups: GPUBindGroup[], x: number[], y: number[],
 *            perRow: number[], perPosition: number[]}} Plan
 */

/** @returns {Plan} */
export function newPlan() {
  return { pipelines: [], groups: [], x: [], y: [], perRow: [], perPosition: [] };
}

/**
 * @param {Plan} plan @param {GPUComputePipeline} pipeline @param {GPUBindGroup} group
 * @param {number} x @param {number} y @param {number} perRow @param {number} perPosition
 */
export function addDispatch(plan, pipeline, group, x, y, perRow, perPosition) {
  plan.pipelines.push(pipeline);
  plan.groups.push(group);
  plan.x.push(x);
  plan.y.push(y);
  plan.perRow.push(perRow);
  plan.perPosition.push(perPosition);
}

/**
 * Record dispatches [first, stop) of the plan into the pass, for a step of `rows` tokens that ends at position `length`.
 * @param {GPUComputePassEncoder} pass @param {Plan} plan @param {number} first @param {number} stop
 * @param {number} rows @param {number} length
 */
function replay(pass, plan, first, stop, rows, length) {
  for (let i = first; i < stop; i++) {
    pass.setPipeline(plan.pipelines[i]);
    pass.setBindGroup(0, plan.groups[i]);
    const y = plan.perRow[i] ? Math.ceil(rows / plan.perRow[i])
      : plan.perPosition[i] ? Math.ceil(length / plan.perPosition[i]) : plan.y[i];
    pass.dispatchWorkgroups(plan.x[i], y);
  }
}

/**
 * Run one step in one compute pass.
 * @param {GPUDevice} device @param {Plan} plan @param {number} count @param {number} rows @param {number} length
 */
export function submit(device, plan, count, rows, length) {
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  replay(pass, plan, 0, count, rows, length);
  pass.end();
  device.queue.submit([encoder.finish()]);
}

/**
 * Sample `steps` tokens, each in one compute pass, without waiting for any of them: the sampler writes the next token
 * where the model reads it. `model` null: only sample, from the logits that are there. Resolves to the results' bytes,
 * of `size` each, from slot `first` of a ring of `ring`.
 * @param {GPUDevice} device @param {Plan | null} model @param {Plan} sampler @param {number} steps
 * @param {number} length positions filled before @param {GPUBuffer} results @param {number} first @param {number} ring
 * @param {number} size @param {GPUBuffer} staging
 */
export async function decode(device, model, sampler, steps, length, results, first, ring, size, staging) {
  const encoder = device.createCommandEncoder();
  for (let i = 0; i < steps; i++) {
    const pass = encoder.beginComputePass();
    if (model) replay(pass, model, 0, model.pipelines.length, 1, length + i + 1);
    replay(pass, sampler, 0, sampler.pipelines.length, 1, length + i + 1);
    pass.end();
  }
  const until = Math.min(steps, ring - first);
  encoder.copyBufferToBuffer(results, first * size, staging, 0, until * size);
  if (until < steps) encoder.copyBufferToBuffer(results, 0, staging, until * size, (steps - until) * size);
  device.queue.submit([encoder.finish()]);
  await staging.mapAsync(GPUMapMode.READ, 0, steps * size);
  const copy = new Uint8Array(staging.getMappedRange(0, steps * size)).slice();
  staging.unmap();
  return copy;
}

/**
 * @param {GPUDevice} device @param {GPUBindGroupLayout} layout @param {number[]} numbers @param {GPUBuffer[]} buffers
 * @param {number[]} offsets @param {number[]} sizes
 */
export function bindGroup(device, layout, numbers, buffers, offsets, sizes) {
  const entries = numbers.map((binding, i) => ({
    binding, resource: { buffer: buffers[i], offset: offsets[i], size: sizes[i] },
  }));
  return device.createBindGroup({ layout, entries });
}

/**
 * Compile a compute pipeline whose bindings are [number, type] pairs; compile errors come back as text with lines.
 * @param {GPUDevice} device @param {string} label @param {string} code @param {[number, GPUBufferBindingType][]} bindings
 */
export async function compile(device, label, code, bindings) {
  const module = device.createShaderModule({ label, code });
  const info = await module.getCompilationInfo();
  const errors = info.messages.filter((m) => m.type === "error").map((m) => `line ${m.lineNum}: ${m.message}`);
  if (errors.length) return { error: errors.join("; ") };
  const layout = device.createBindGroupLayout({
    label,
    entries: bindings.map(([binding, type]) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } })),
  });
  try {
    const pipeline = await device.createComputePipelineAsync({
      label,
      layout: device.createPipelineLayout({ label, bindGroupLayouts: [layout] }),
      compute: { module, entryPoint: "main" },
    });
    return { pipeline, layout };
  } catch (error) {
    return { error: String(error instanceof Error ? error.message : error) };
  }
}

/**
 * Copy bytes out of a GPU buffer through a staging buffer that the caller keeps for the purpose.
 * @param {GPUDevice} device @param {GPUBuffer} source @param {number} offset @param {number} bytes @param {GPUBuffer} staging
 */
export async function read(device, source, offset, bytes, staging) {
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(source, offset, staging, 0, bytes);
  device.queue.submit([encoder.finish()]);
  await staging.mapAsync(GPUMapMode.READ, 0, bytes);
  const copy = new Uint8Array(staging.getMappedRange(0, bytes)).slice();
  staging.unmap();
  return copy;
}

/**
 * Copy stretches of several buffers into one, one behind the other.
 * @param {GPUDevice} device @param {GPUBuffer[]} sources @param {number[]} offsets @param {number[]} sizes
 * @param {GPUBuffer} target
 */
export function gather(device, sources, offsets, sizes, target) {
  const encoder = device.createCommandEncoder();
  let end = 0;
  sources.forEach((source, i) => {
    encoder.copyBufferToBuffer(source, offsets[i], target, end, sizes[i]);
    end += sizes[i];
  });
  device.queue.submit([encoder.finish()]);
}

/**
 * The dispatches at some places of a plan, as a plan.
 * @param {Plan} plan @param {number[]} places @returns {Plan}
 */
export function pick(plan, places) {
  /** @template T @param {T[]} list */
  const some = (list) => places.map((place) => list[place]);
  return {
    pipelines: some(plan.pipelines), groups: some(plan.groups), x: some(plan.x), y: some(plan.y),
    perRow: some(plan.perRow), perPosition: some(plan.perPosition),
  };
}

/**
 * GPU time in milliseconds of `repeats` times the dispatches [first, stop) of each plan, in one compute pass, by timestamps.
 * Browsers round timestamps (Chromium to 0.1 ms), so repeat until that does not matter.
 * @param {GPUDevice} device @param {Plan[]} plans @param {number} first @param {number} stop Infinity: all
 * @param {number} repeats @param {number} rows @param {number} length
 */
export async function time(device, plans, first, stop, repeats, rows, length) {
  const querySet = device.createQuerySet({ type: "timestamp", count: 2 });
  const resolved = device.createBuffer({ size: 16, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC });
  const staging = device.createBuffer({ size: 16, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass({
    timestampWrites: { querySet, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 },
  });
  for (let i = 0; i < repeats; i++) {
    for (const plan of plans) replay(pass, plan, first, Math.min(stop, plan.pipelines.length), rows, length);
  }
  pass.end();
  encoder.resolveQuerySet(querySet, 0, 2, resolved, 0);
  encoder.copyBufferToBuffer(resolved, 0, staging, 0, 16);
  device.queue.submit([encoder.finish()]);
  await staging.mapAsync(GPUMapMode.READ);
  const [begin, end] = new BigInt64Array(staging.getMappedRange());
  const milliseconds = Number(end - begin) / 1e6;
  for (const resource of [querySet, resolved, staging]) resource.destroy();
  return milliseconds;
}
