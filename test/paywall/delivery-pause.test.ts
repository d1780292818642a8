import { expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { createPaidDeliveries } from '../../src/paywall/answer/delivery'
import { createReceipts } from '../../src/paywall/answer/receipts'
import { createAnswerStore } from '../../src/paywall/answer/store'
import * as Crypto from '../../src/protocol/Crypto'
import { ownSettlement } from '../harness/own-settlement'
import { purposeOf, signTransfer, until } from '../harness/settlement'

/** A process that was stopped, and wakes with events that it has not read. */

const kinds = ['whole', 'stream'] as const

type Own = Awaited<ReturnType<typeof ownSettlement>>

/** Deliveries whose clocks a pause moves: that of the day, or that of the machine. */
async function pausable({ fixture }: Own, clock: 'now' | 'monotonic') {
  const pause = { ms: 0 }
  const deliveries = createPaidDeliveries({
    settlement: fixture.settlement,
    answers: await createAnswerStore(fixture.ledger.answers),
    challengeSecrets: [new Uint8Array(32)],
    receipts: createReceipts(Crypto.bytes(account(9).privateKey), Date.now),
    now: Date.now,
    monotonic: () => performance.now(),
    log: () => undefined,
    [clock]: () => (clock === 'now' ? Date.now() : performance.now()) + pause.ms,
  })
  return { deliveries, pause }
}

/** A payment that is confirmed, and what a request for it says of itself. */
async function paid({ fixture, network }: Own) {
  const transfer = signTransfer(network)
  const asked = { transfer, purpose: purposeOf(), receivedAt: Date.now(), isKeySigned: true }
  const outcome = await fixture.settlement.settle(asked, 120_000)
  if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
  const resource = 'http://localhost/m/weather/forecast'
  const request = { method: 'GET', resource, search: '', requestId: 'request' }
  return { outcome, request, found: () => fixture.settlement.find(transfer) }
}

test.each(kinds)(
  'an answer (%s) that is made after a pause is not delivered to a buyer that left meanwhile',
  async (kind) => {
    await using own = await ownSettlement()
    const { deliveries, pause } = await pausable(own, 'now')
    for (const wasPaused of [false, true]) {
      const { outcome, found, ...made } = await paid(own)
      const buyer = new AbortController()
      let isAnswered = false
      const request = {
        ...made.request,
        signal: buyer.signal,
        fulfil: async () => {
          const wake = () => {
            if (wasPaused) pause.ms += 10_000
            // As the server does: it notices a closed connection when it reads the socket, and not
            // after the answer.
            setImmediate(() => setImmediate(() => isAnswered || buyer.abort()))
          }
          const bytes = new TextEncoder().encode('paid')
          if (kind === 'whole') wake()
          const body = kind === 'whole' ? bytes : streamOf(bytes, wake)
          return { delivered: true as const, status: 200, headers: new Headers(), body }
        },
      }
      const response = await deliveries.deliver(request, outcome, 'x402', () => undefined)
      if (kind === 'stream') {
        const read = response.text()
        if (!wasPaused) expect(await read).toBe('paid')
        else await read.catch(() => undefined)
      }
      isAnswered = true
      await until(async () => (await found())?.delivery !== 'delivering')
      expect((await found())?.delivery).toBe(wasPaused ? 'none' : 'delivered')
    }
    await deliveries.stop()
  },
)

test('after a pause behind an answer the buyer may present its credential again', async () => {
  await using own = await ownSettlement()
  const { deliveries, pause } = await pausable(own, 'monotonic')
  const answered = { delivered: true as const, status: 200, headers: new Headers() }
  const failed = { delivered: false, code: 'upstream-failed', upstreamStatus: 500 } as const
  for (const kind of ['whole', 'in a message', 'failed']) {
    const isFailed = kind === 'failed'
    for (const wasPaused of [false, true]) {
      const { outcome, found, ...made } = await paid(own)
      const taken = Promise.withResolvers<boolean>()
      const request = {
        ...made.request,
        // The connection ends after the answer went out, which the server does not report.
        signal: new AbortController().signal,
        ...(kind === 'in a message' && {
          envelope: { taken: taken.promise, maxBytes: 1_000, reserve: () => true },
        }),
        fulfil: async () =>
          isFailed
            ? { ...failed, detail: 'The upstream has failed.' }
            : { ...answered, body: new TextEncoder().encode('paid') },
      }
      await deliveries.deliver(request, outcome, 'x402', () => undefined).catch(() => undefined)
      taken.resolve(true)
      await taken.promise
      if (wasPaused) pause.ms += 10_000
      await until(async () => (await found())?.delivery !== 'delivering')
      const payment = await found()
      if (payment === undefined) throw new Error('no payment')
      expect(payment.delivery).toBe(isFailed || wasPaused ? 'none' : 'delivered')
      if (isFailed) await until(async () => (await deliveries.wasAnswered(payment)) !== wasPaused)
    }
  }
  await deliveries.stop()
})

test('a buyer that left before its answer failed may be back in the same turn', async () => {
  await using own = await ownSettlement()
  const { deliveries } = await pausable(own, 'now')
  for (const hasLeft of [false, true]) {
    const { outcome, found, ...made } = await paid(own)
    const buyer = new AbortController()
    const fulfil = async () => {
      if (hasLeft) buyer.abort()
      const detail = 'The upstream has failed.'
      return { delivered: false, code: 'upstream-failed', upstreamStatus: 500, detail } as const
    }
    const request = { ...made.request, signal: buyer.signal, fulfil }
    await deliveries.deliver(request, outcome, 'x402', () => undefined).catch(() => undefined)
    const payment = await found()
    if (payment === undefined) throw new Error('no payment')
    expect(await deliveries.wasAnswered(payment)).toBe(!hasLeft)
  }
  await deliveries.stop()
})

/** A stream whose first bytes come after the pause. */
function streamOf(bytes: Uint8Array, wake: () => void): ReadableStream<Uint8Array> {
  let isOver = false
  return new ReadableStream<Uint8Array>(
    {
      pull(controller) {
        if (isOver) return controller.close()
        isOver = true
        wake()
        controller.enqueue(bytes)
      },
    },
    { highWaterMark: 0 },
  )
}
