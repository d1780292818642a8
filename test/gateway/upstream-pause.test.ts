import { describe, expect, test } from 'bun:test'
import { startWatch } from '../../src/net/watch'

/** The time limit of an upstream in a process that was paused, as by SIGSTOP. */

describe('a time limit that passes while the process is paused', () => {
  /** An answer that the process reads after its timers, when it wakes. */
  const unread = () =>
    new Promise<string>((resolve) => setTimeout(() => setImmediate(() => resolve('answer')), 1))

  test('an answer that arrived during a pause of the process is read', async () => {
    const watch = startWatch(undefined)
    watch.arm(1_000)
    const answer = watch.race(unread())
    Bun.sleepSync(1_100)
    expect(await answer).toBe('answer')
    watch.stop()
  })

  test('error: an upstream that sent nothing during a pause has not answered in time', async () => {
    const watch = startWatch(undefined)
    watch.arm(1)
    const answer = watch.race(new Promise(() => undefined))
    Bun.sleepSync(1_100)
    expect(await answer.catch((error: unknown) => error)).toMatchObject({ kind: 'timeout' })
  })
})
