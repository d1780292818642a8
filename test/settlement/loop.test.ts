import { expect, test } from 'bun:test'
import { createLoop } from '../../db/postgres/gateways'

const longMs = 600_000

/** A loop whose turn waits until `finish` is called. */
function startLoop() {
  let isOver = false
  const entered = Promise.withResolvers<void>()
  const turn = Promise.withResolvers<void>()
  const loop = createLoop({
    work() {
      entered.resolve()
      return turn.promise
    },
    everyMs: longMs,
    isOver: () => isOver,
    fault: () => undefined,
  })
  const stop = () => {
    isOver = true
    return loop.stop()
  }
  return { loop, started: entered.promise, finish: turn.resolve, stop }
}

test('a loop that pauses stops at once', async () => {
  const { stop } = startLoop()
  expect(await stop()).toBeUndefined()
})

test('a loop stops after the turn that runs, without another pause', async () => {
  const { loop, started, finish, stop } = startLoop()
  loop.wake()
  await started
  const stopped = stop()
  finish()
  expect(await stopped).toBeUndefined()
})
