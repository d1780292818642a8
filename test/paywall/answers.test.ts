import { expect, test } from 'bun:test'
import type { Authorization } from '../../db/Authorization'
import type { Payment } from '../../db/Payment'
import type { DeliveryRequest } from '../../src/paywall/answer/delivery'
import { createReceipts } from '../../src/paywall/answer/receipts'
import { createRedeeming, receiptTokens } from '../../src/paywall/answer/undelivered'
import { createUsageDeliveries, type UsageOptions } from '../../src/paywall/usage/usage'
import { authorizationOf } from '../harness/authorizations'
import { settlementOf } from '../harness/buyer'
import { failureOf } from '../harness/outcome'

/** Answers by use, their receipts and tokens, without a chain. */

const secret = new Uint8Array(32).fill(7)

type Confirmed = { payment: Payment }
type Settled = Partial<UsageOptions['settlement']> & {
  /** Called with the rule that starts the delivery with the confirmation. */
  onSettle?: (deliverOnConfirm: () => boolean) => void
}

/** Deliveries by use that hold at most ten bytes. Their charges are confirmed at once. */
function holding({ onSettle, ...settlement }: Settled = {}) {
  const delivered: string[] = []
  const charged = (authorization: Authorization) => ({ ...authorization, state: 'metered' })
  const options = {
    settlement: {
      needsSecond: () => false,
      authorizations: {
        charge: async (authorization: Authorization) => charged(authorization),
        settleCharge: async (payment: unknown, options: { deliverOnConfirm: () => boolean }) => {
          onSettle?.(options.deliverOnConfirm)
          return { kind: 'confirmed', payment }
        },
      },
      ...settlement,
    },
    challengeSecrets: [secret],
    receipts: createReceipts(secret, () => 1_000),
    heldMaxBytes: 10,
    settleWaitMs: () => 1_000,
    // A minute before the time in which a charge must be settled.
    now: () => 1_999_999_910_000,
    log: () => undefined,
  } as unknown as UsageOptions
  const deliveries = {
    async deliver({ fulfil }: DeliveryRequest, { payment }: Confirmed) {
      const made = await fulfil({ ...payment, attempts: 1 })
      if (!made.delivered) throw new Error('it was made before')
      delivered.push(await new Response(made.body as Uint8Array<ArrayBuffer>).text())
      return new Response()
    },
  } as unknown as Parameters<typeof createUsageDeliveries>[1]
  const usage = createUsageDeliveries(options, deliveries)
  const request = {
    requestId: 'request',
    signal: new AbortController().signal,
    async fulfil() {
      const headers = new Headers({ 'content-type': 'text/plain' })
      return { delivered: true, status: 200, headers, body: new Response('8 bytes.').body }
    },
  } as unknown as DeliveryRequest
  return {
    delivered,
    buy: () => usage.deliver(request, authorizationOf(), { release: () => undefined }),
  }
}

test('the bytes of an answer by use make room for the next one when it is sent', async () => {
  const { buy, delivered } = holding()
  for (const _ of [1, 2, 3]) await buy()
  expect(delivered).toEqual(Array(3).fill('8 bytes.'))
})

test('attack: an answer by use is not sent before a second node shows its charge', async () => {
  const asked: boolean[] = []
  const { buy, delivered } = holding({
    needsSecond: () => true,
    confirmTwice: async () => false,
    onSettle: (deliverOnConfirm) => void asked.push(deliverOnConfirm()),
  })
  expect(await failureOf(buy())).toMatchObject({ code: 'settlement-pending' })
  expect([asked, delivered]).toEqual([[false], []])
})

const payment = {
  ...authorizationOf(),
  id: 'pay_1',
  attempts: 1,
  redeemUntil: undefined,
  transaction: `0x${'a'.repeat(64)}`,
} as unknown as Payment

test('a receipt names the transaction that paid, though another one was signed in advance', () => {
  const receipts = createReceipts(secret, () => 1_000)
  receipts.expecting('')(payment)
  const transaction = `0x${'b'.repeat(64)}` as const
  const headers = receipts.headersOf({ ...payment, transaction }, { protocol: 'x402', search: '' })
  const told = settlementOf(new Response(null, { headers }))
  expect(told).toMatchObject({
    transaction,
    extensions: { 'offer-receipt': { info: { receipt: { payload: { transaction } } } } },
  })
})

test('a receipt names what was charged, though another amount was signed in advance', () => {
  const receipts = createReceipts(secret, () => 1_000)
  receipts.expecting('')(payment)
  const transfer = { ...payment.transfer, amountAtomic: 7n }
  const headers = receipts.headersOf({ ...payment, transfer }, { protocol: 'x402', search: '' })
  const told = settlementOf(new Response(null, { headers }))
  const resourceUrl = expect.stringContaining('amount=7')
  expect(told).toMatchObject({
    extensions: { 'offer-receipt': { info: { receipt: { payload: { resourceUrl } } } } },
  })
})

test('attack: the token that shows a receipt does not redeem its payment', () => {
  const failed = {
    delivered: false,
    upstreamStatus: 500,
    code: 'upstream-failed',
    detail: '',
  } as const
  const { members } = createRedeeming(secret, () => 1_000).problem(payment, failed, 'x402')
  const { token } = members.redeem as { token: string }
  expect(receiptTokens([secret], payment.id)).not.toContain(token)
})
