import { describe, expect, test } from 'bun:test'
import type { Payment } from '../../db/Payment'
import { createPaidDeliveries } from '../../src/paywall/answer/delivery'
import { createReceipts } from '../../src/paywall/answer/receipts'
import { createAnswerStore } from '../../src/paywall/answer/store'
import { cluster, type Process, payAt } from '../harness/cluster'
import { hasPostgres } from '../harness/postgres'

const secret = new Uint8Array(32).fill(7)

const failure = {
  delivered: false,
  upstreamStatus: 500,
  redeemTokenHash: 'ab'.repeat(32),
  redeemUntil: Date.now() + 60_000,
} as const

/** Delivers at a gateway. Resolves with the status, or with the code of the problem. */
async function deliverAt(
  { settlement, ledger }: Process,
  payment: Payment,
  make: () => Promise<void> = async () => undefined,
) {
  const deliveries = createPaidDeliveries({
    settlement,
    answers: await createAnswerStore(ledger.answers),
    challengeSecrets: [secret],
    receipts: createReceipts(secret, Date.now),
    now: Date.now,
    monotonic: () => performance.now(),
    log: () => undefined,
  })
  let forwards = 0
  const request = {
    method: 'GET',
    resource: 'http://gate/thing',
    search: '',
    requestId: 'req',
    signal: new AbortController().signal,
    fulfil: async () => {
      forwards++
      await make()
      const body = new TextEncoder().encode('paid')
      return { delivered: true as const, status: 200, headers: new Headers(), body }
    },
  }
  const said = await deliveries
    .deliver(request, { payment }, 'mpp', () => undefined)
    .then(({ status }) => status)
    .catch((error: Error & { code?: string }) => error.code)
  await deliveries.stop()
  return { said, forwards }
}

describe.skipIf(!hasPostgres)('one payment at two gateways', () => {
  test('error: the second gateway answers 409 while the first delivers, then that the payment is delivered', async () => {
    await using own = await cluster()
    const { chain } = own
    const first = await own.start()
    const second = await own.start()
    const paid = chain.sign()
    const outcome = await payAt(first, chain, paid)
    if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
    const { payment } = outcome
    await first.settlement.beginDelivery(payment.id)
    // Both gateways have read the payment before.
    expect(await deliverAt(second, payment)).toEqual({ said: 'payment-in-progress', forwards: 0 })
    // The first one fails after the second one was refused, and before the second one reads why.
    const { settlement } = second
    const late = {
      ...settlement,
      async beginDelivery(id: string) {
        const refusal = await settlement.beginDelivery(id).catch((error: unknown) => error)
        await first.settlement.endDelivery(id, failure)
        throw refusal
      },
    }
    const refused = await deliverAt({ ...second, settlement: late }, payment)
    expect(refused).toEqual({ said: 'payment-in-progress', forwards: 0 })
    await first.settlement.beginDelivery(payment.id)
    const result = { delivered: true, upstreamStatus: 200, truncated: false } as const
    await first.settlement.endDelivery(payment.id, result)
    expect(await deliverAt(second, payment)).toEqual({ said: 'redeem-exhausted', forwards: 0 })
  })

  test('error: a delivery that the other one took over is in progress there, or has ended', async () => {
    await using own = await cluster()
    const { chain } = own
    const first = await own.start()
    const second = await own.start()
    for (const ends of [false, true]) {
      const outcome = await payAt(first, chain, chain.sign({ from: ends ? 2 : 1 }))
      if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
      const { payment } = outcome
      const told = await deliverAt(first, payment, async () => {
        // As after a pause in which the others took it for dead.
        await second.sql('UPDATE payments SET delivering_by = $1 WHERE id = $2', [
          second.id,
          payment.id,
        ])
        const result = { delivered: true, upstreamStatus: 200, truncated: false } as const
        if (ends) await second.settlement.endDelivery(payment.id, result)
        throw new Error('the upstream is gone')
      })
      const said = ends ? 'redeem-exhausted' : 'payment-in-progress'
      expect(told).toEqual({ said, forwards: 1 })
    }
  })

  test('error: an attempt of the other gateway counts in the limit', async () => {
    await using own = await cluster()
    const { chain } = own
    const first = await own.start()
    const second = await own.start()
    const outcome = await payAt(first, chain, chain.sign())
    if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
    const { payment } = outcome
    await first.settlement.beginDelivery(payment.id)
    const redeem = { redeemTokenHash: 'a'.repeat(64), redeemUntil: Date.now() + 60_000 }
    const failed = { delivered: false, upstreamStatus: 500, ...redeem } as const
    await first.settlement.endDelivery(payment.id, failed)
    // It has read the payment before that attempt.
    expect(await deliverAt(second, payment)).toEqual({ said: 'payment-in-progress', forwards: 0 })
    const current = await second.settlement.findById(payment.id)
    expect(current?.attempts).toBe(1)
    expect(await deliverAt(second, current ?? payment)).toEqual({ said: 200, forwards: 1 })
  })
})
