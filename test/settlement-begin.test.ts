import { afterEach, beforeEach, expect, test } from 'bun:test'
import type { NetworkConfig } from '../src/config/Config'
import { mine, setAutomine } from '../src/demo/chains'
import type { Transfer } from '../src/protocol/Transfer'
import {
  type Desk,
  networkOf,
  purposeOf,
  signTransfer,
  startDesk,
  startNetwork,
  temporary,
  until,
} from './harness/settlement'

// A delivery that is begun in the commit of its confirmation, for the one caller that waits for it.

let net: Awaited<ReturnType<typeof startNetwork>>
let network: NetworkConfig
let directory: ReturnType<typeof temporary>
let desk: Desk

beforeEach(async () => {
  net = await startNetwork()
  network = networkOf(net.tap.url)
  directory = temporary()
  desk = await startDesk([network], directory.path)
})

afterEach(async () => {
  await desk.stop()
  await net.stop()
  directory.remove()
})

function settle(transfer: Transfer, beginsDelivery: () => boolean, waitMs = 20_000) {
  const options = { waitMs, receivedAt: Date.now(), proven: true, beginsDelivery }
  return desk.settlement.settle(transfer, purposeOf(), options)
}

const delivered = { delivered: true, upstreamStatus: 200, truncated: false } as const

test('behavior: is told with the outcome, and ends as any other', async () => {
  const transfers = [1, 2, 3, 4, 5].map((from) => signTransfer(network, { from }))
  const outcomes = await Promise.all(transfers.map((each) => settle(each, () => true)))
  for (const [at, transfer] of transfers.entries()) {
    expect(outcomes[at]).toMatchObject({ kind: 'confirmed', isBegun: true })
    const payment = desk.settlement.find(transfer)
    expect(payment).toMatchObject({ state: 'confirmed', delivery: 'delivering', attempts: 1 })
    await desk.settlement.endDelivery(payment?.id ?? '', delivered)
    expect(desk.settlement.find(transfer)).toMatchObject({ delivery: 'delivered', attempts: 1 })
  }
})

test('behavior: is not begun for a buyer that has left, nor for nobody', async () => {
  for (const transfer of [signTransfer(network), signTransfer(network)]) {
    const outcome = await settle(transfer, () => false)
    expect(outcome).toMatchObject({ kind: 'confirmed', payment: { delivery: 'none', attempts: 0 } })
    expect(outcome).not.toHaveProperty('isBegun')
  }
  const outcome = await desk.pay(signTransfer(network))
  expect(outcome).toMatchObject({ kind: 'confirmed', payment: { delivery: 'none', attempts: 0 } })
})

test('behavior: is not begun when the money comes after the wait', async () => {
  await setAutomine(net.chain, false)
  const transfer = signTransfer(network)
  expect((await settle(transfer, () => true, 50)).kind).toBe('pending')
  await mine(net.chain)
  await until(() => desk.settlement.find(transfer)?.state === 'confirmed')
  expect(desk.settlement.find(transfer)).toMatchObject({ delivery: 'none', attempts: 0 })
})

test('behavior: who meets the payment of another caller begins for itself', async () => {
  await setAutomine(net.chain, false)
  const transfer = signTransfer(network)
  const first = settle(transfer, () => true)
  await until(() => desk.settlement.find(transfer) !== undefined)
  const second = settle(transfer, () => true)
  await mine(net.chain)
  expect(await first).toMatchObject({ kind: 'confirmed', isBegun: true })
  expect(await second).not.toHaveProperty('isBegun')
  expect(desk.settlement.find(transfer)?.attempts).toBe(1)
})

test('behavior: one that a crash cut off is begun again by who comes back', async () => {
  const transfer = signTransfer(network)
  await settle(transfer, () => true)
  await desk.crash()
  desk = await startDesk([network], directory.path)
  const payment = desk.settlement.find(transfer)
  expect(payment).toMatchObject({ delivery: 'delivering', attempts: 1 })
  expect(await desk.settlement.beginDelivery(payment?.id ?? '')).toMatchObject({ attempts: 2 })
})
