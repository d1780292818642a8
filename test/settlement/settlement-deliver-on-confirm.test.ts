import { expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { mine } from '../../src/demo/chains'
import { createPaidDeliveries } from '../../src/paywall/answer/delivery'
import { createReceipts } from '../../src/paywall/answer/receipts'
import { createAnswerStore } from '../../src/paywall/answer/store'
import * as Crypto from '../../src/protocol/Crypto'
import type { Transfer } from '../../src/protocol/Transfer'
import { setAutomine } from '../harness/chains'
import { failureOf } from '../harness/outcome'
import { type OwnSettlement, ownSettlement } from '../harness/own-settlement'
import { purposeOf, signTransfer, until } from '../harness/settlement'

// A delivery that starts in the commit of its confirmation, for the one caller that waits for it.

function settle(
  { fixture }: OwnSettlement,
  transfer: Transfer,
  deliverOnConfirm: () => boolean,
  waitMs = 120_000,
) {
  const options = { receivedAt: Date.now(), isKeySigned: true, deliverOnConfirm }
  return fixture.settlement.settle({ transfer, purpose: purposeOf(), ...options }, waitMs)
}

const delivered = { delivered: true, upstreamStatus: 200, truncated: false } as const

test.concurrent('a delivery that starts with the confirmation is part of the outcome, and ends like any other', async () => {
  await using own = await ownSettlement()
  const { fixture, network } = own
  const transfers = [1, 2, 3, 4, 5].map((from) => signTransfer(network, { from }))
  const outcomes = await Promise.all(transfers.map((each) => settle(own, each, () => true)))
  for (const [at, transfer] of transfers.entries()) {
    expect(outcomes[at]).toMatchObject({ kind: 'confirmed', deliveryStarted: true })
    const payment = await fixture.settlement.find(transfer)
    expect(payment).toMatchObject({ state: 'confirmed', delivery: 'delivering', attempts: 1 })
    await fixture.settlement.endDelivery(payment?.id ?? '', delivered)
    expect(await fixture.settlement.find(transfer)).toMatchObject({
      delivery: 'delivered',
      attempts: 1,
    })
  }
})

test.concurrent('the delivery does not start with the confirmation when the buyer has disconnected, nor without the option', async () => {
  await using own = await ownSettlement()
  const outcomes = [
    await settle(own, signTransfer(own.network), () => false),
    await own.fixture.pay(signTransfer(own.network)),
  ]
  for (const outcome of outcomes) {
    expect(outcome).toMatchObject({ kind: 'confirmed', payment: { delivery: 'none', attempts: 0 } })
    expect(outcome).not.toHaveProperty('deliveryStarted')
  }
})

test.concurrent('the delivery does not start with a confirmation after the wait', async () => {
  await using own = await ownSettlement()
  await setAutomine(own.net.chain, false)
  const transfer = signTransfer(own.network)
  const found = () => own.fixture.settlement.find(transfer)
  expect((await settle(own, transfer, () => true, 2_000)).kind).toBe('pending')
  await own.untilSent((await found())?.transaction ?? '')
  await mine(own.net.chain)
  await until(async () => (await found())?.state === 'confirmed')
  expect(await found()).toMatchObject({ delivery: 'none', attempts: 0 })
})

test('the caller delivers when the wait ends between the check and the commit', async () => {
  await using own = await ownSettlement()
  const transfer = signTransfer(own.network)
  const found = () => own.fixture.settlement.find(transfer)
  const waitMs = 2_000
  const endsAt = performance.now() + waitMs + 50
  const outcome = await settle(
    own,
    transfer,
    () => {
      // A busy turn of the event loop: the wait ends before the commit runs.
      while (performance.now() < endsAt);
      return true
    },
    waitMs,
  )
  // Otherwise the delivery that started would have no caller.
  expect(outcome).toMatchObject({ kind: 'confirmed', deliveryStarted: true })
  expect(await found()).toMatchObject({ delivery: 'delivering', attempts: 1 })
})

test.concurrent('a caller that meets the payment of another caller starts its own delivery', async () => {
  await using own = await ownSettlement()
  await setAutomine(own.net.chain, false)
  const transfer = signTransfer(own.network)
  const found = () => own.fixture.settlement.find(transfer)
  const first = settle(own, transfer, () => true)
  await until(async () => (await found()) !== undefined)
  const second = settle(own, transfer, () => true)
  await own.untilSent((await found())?.transaction ?? '')
  await mine(own.net.chain)
  expect(await first).toMatchObject({ kind: 'confirmed', deliveryStarted: true })
  expect(await second).not.toHaveProperty('deliveryStarted')
  expect((await found())?.attempts).toBe(1)
})

test.concurrent('a delivery that a crash interrupted starts again when the buyer repeats its request', async () => {
  await using own = await ownSettlement()
  const transfer = signTransfer(own.network)
  await settle(own, transfer, () => true)
  await own.reopen()
  const payment = await own.fixture.settlement.find(transfer)
  expect(payment).toMatchObject({ delivery: 'delivering', attempts: 1 })
  const again = await own.fixture.settlement.beginDelivery(payment?.id ?? '')
  expect(again).toMatchObject({ attempts: 2 })
})

test.concurrent('the delivery of a buyer that disconnects at its start ends, and is made when the buyer repeats its request', async () => {
  await using own = await ownSettlement()
  const { fixture } = own
  const transfer = signTransfer(own.network)
  const outcome = await settle(own, transfer, () => true)
  if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
  let forwards = 0
  const deliveries = createPaidDeliveries({
    settlement: fixture.settlement,
    answers: await createAnswerStore(fixture.ledger.answers),
    challengeSecrets: [new Uint8Array(32)],
    receipts: createReceipts(Crypto.bytes(account(9).privateKey), Date.now),
    now: Date.now,
    monotonic: () => performance.now(),
    log: () => undefined,
  })
  const request = {
    method: 'GET',
    resource: 'http://localhost/m/weather/forecast',
    search: '',
    requestId: 'request',
    fulfil: async () => {
      forwards++
      return {
        delivered: true as const,
        status: 200,
        headers: new Headers(),
        body: new Uint8Array(),
      }
    },
  }
  const left = { ...request, signal: AbortSignal.abort() }
  expect(await failureOf(deliveries.deliver(left, outcome, 'x402', () => undefined))).toMatchObject(
    {
      code: 'payment-in-progress',
    },
  )
  const payment = await fixture.settlement.find(transfer)
  if (payment === undefined) throw new Error('no payment')
  expect(payment).toMatchObject({ delivery: 'none', attempts: 1 })
  expect(forwards).toBe(0)
  const stays = { ...request, signal: new AbortController().signal }
  expect((await deliveries.deliver(stays, { payment }, 'x402', () => undefined)).status).toBe(200)
  expect(forwards).toBe(1)
  await until(async () => (await fixture.settlement.find(transfer))?.delivery === 'delivered')
  expect((await fixture.settlement.find(transfer))?.attempts).toBe(2)
})
