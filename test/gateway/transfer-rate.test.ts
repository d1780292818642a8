import { expect, test } from 'bun:test'
import { createTransferRates } from '../../src/paywall/answer/transfer-rate'
import { until } from '../harness/world'

const stepMs = 200
const quickly = { stepBytes: 1_000, stepMs, stalledMax: 100 }

/** The names of the streams that were cut, and a function that starts a named stream. */
function watched(min: typeof quickly, names: readonly string[]) {
  const cut: string[] = []
  const rates = createTransferRates(min)
  const streams = names.map((name) => rates.watch(() => cut.push(name)))
  return { cut, streams }
}

test('attack: a buyer below the minimum rate is cut, one above it is not', async () => {
  const { cut, streams } = watched(quickly, ['none', 'some', 'enough'])
  const [none, some, enough] = streams
  none?.put(10)
  const timer = setInterval(() => {
    some?.put(1)
    enough?.put(600)
    setImmediate(() => {
      some?.taken()
      enough?.taken()
      some?.put(1)
      enough?.put(600)
    })
  }, 1)
  await until('two are cut', () => cut.length === 2)
  clearInterval(timer)
  expect(cut.toSorted()).toEqual(['none', 'some'])
  enough?.stop()
})

test('attack: a collection is requested for a cut stream, not for an ended one', async () => {
  let told = 0
  const reclaim = { after: () => void told++ }
  const rates = createTransferRates({ ...quickly, reclaim })
  rates.watch(() => {}).stop()
  expect(told).toBe(0)
  rates.watch(() => {}).put(1)
  await until('the other one is cut', () => told > 0)
  expect(told).toBe(1)
})

test('a stream of a slow upstream is not cut', async () => {
  const { cut, streams } = watched(quickly, ['slow upstream', 'slow buyer'])
  streams[0]?.put(1)
  streams[0]?.taken()
  streams[1]?.put(1)
  await until('the other one is cut', () => cut.length > 0)
  expect(cut).toEqual(['slow buyer'])
  streams[0]?.stop()
})

test('attack: of many buyers that do not read, the longest idle ones are cut at once', async () => {
  // The step is so long that no stream is cut for its rate.
  const min = { stepBytes: 1_000, stepMs: 96 * 20, stalledMax: 1 }
  const { cut, streams } = watched(min, ['first', 'moving', 'second'])
  const [first, moving, second] = streams
  first?.put(1)
  const timer = setInterval(() => {
    moving?.taken()
    moving?.put(1)
  }, 1)
  const look = createTransferRates({ ...min, stalledMax: 0 })
  let hasLooked = false
  look
    .watch(() => {
      hasLooked = true
    })
    .put(1)
  await until('the first stands still', () => hasLooked)
  second?.put(1)
  await until('one is cut', () => cut.length > 0)
  clearInterval(timer)
  expect(cut).toEqual(['first'])
  for (const stream of streams) stream.stop()
})
