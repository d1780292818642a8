import { expect, test } from 'bun:test'
import { account } from '../src/demo/accounts'
import { createDeliveries } from '../src/paywall/delivery'
import { createAnswers } from '../src/paywall/store'
import * as Crypto from '../src/protocol/Crypto'
import { ownSettlement } from './harness/ownsettlement'
import { purposeOf, signTransfer, until } from './harness/settlement'

/** A process that was stopped, and wakes with events that it has not read. */

test('behavior: an answer that is made after a pause is not delivered to a buyer that left meanwhile', async () => {
  await using own = await ownSettlement()
  const { fixture } = own
  let pausedMs = 0
  const deliveries = createDeliveries({
    settlement: fixture.settlement,
    answers: await createAnswers(fixture.ledger.answers),
    challengeSecrets: [new Uint8Array(32)],
    receiptKey: Crypto.bytes(account(9).privateKey),
    now: () => Date.now() + pausedMs,
    log: () => undefined,
  })
  for (const wasPaused of [false, true]) {
    const transfer = signTransfer(own.network)
    const options = { waitMs: 120_000, receivedAt: Date.now(), isKeySigned: true }
    const outcome = await fixture.settlement.settle(transfer, purposeOf(), options)
    if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
    const buyer = new AbortController()
    let isAnswered = false
    const request = {
      method: 'GET',
      resource: 'http://localhost/m/weather/forecast',
      requestId: 'request',
      signal: buyer.signal,
      fulfil: async () => {
        if (wasPaused) pausedMs += 10_000
        // As the server: it knows of a close when it reads the socket, and not after the answer.
        setImmediate(() => setImmediate(() => isAnswered || buyer.abort()))
        const body = new TextEncoder().encode('paid')
        return { delivered: true as const, status: 200, headers: new Headers(), body }
      },
    }
    await deliveries.deliver(request, outcome, 'x402', () => undefined)
    isAnswered = true
    const found = () => fixture.settlement.find(transfer)
    await until(async () => (await found())?.delivery !== 'delivering')
    expect((await found())?.delivery).toBe(wasPaused ? 'none' : 'delivered')
  }
  await deliveries.stop()
})
