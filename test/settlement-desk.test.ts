import { afterEach, beforeEach, describe, expect, test } from 'bun:test'
import type { NetworkConfig } from '../src/config/Config'
import { account } from '../src/demo/accounts'
import { mine, setAutomine } from '../src/demo/chains'
import * as Crypto from '../src/protocol/Crypto'
import type { Errand } from '../src/settlement/Errand'
import {
  type Desk,
  errandOf,
  mineWhile,
  networkOf,
  signTransfer,
  startDesk,
  startNetwork,
  temporary,
  until,
} from './harness/settlement'

let net: Awaited<ReturnType<typeof startNetwork>>
let network: NetworkConfig
let directory: ReturnType<typeof temporary>
let desk: Desk
let before = 0n

const receiver = account(8).address
const deskKey = Crypto.bytes(account(5).privateKey)
const isSend = (method: string) => method.startsWith('eth_sendRawTransaction')

beforeEach(async () => {
  net = await startNetwork()
  network = networkOf(net.tap.url)
  directory = temporary()
  desk = await startDesk([network], directory.path)
  before = await received()
})

afterEach(async () => {
  await desk.stop()
  await net.stop()
  directory.remove()
})

async function reopen(
  changes: Partial<NetworkConfig> = {},
  options: Parameters<typeof startDesk>[2] = {},
): Promise<void> {
  await desk.crash()
  desk = await startDesk([{ ...network, ...changes }], directory.path, options)
}

const run = (changes: Partial<Errand> = {}, waitMs = 10_000) =>
  desk.settlement.run(errandOf(network, changes), { waitMs })
const stateOf = (id = 'refund:1') => desk.settlement.errand(id)?.state
const received = async () =>
  BigInt((await net.chain.rpc('eth_getBalance', [receiver, 'latest'])) as string)
const moved = async () => (await received()) - before

function transactions() {
  return desk.db.sqlite
    .query<{ kind: string; relayer: string }, []>('SELECT kind, relayer FROM transactions')
    .all()
}

describe('the lanes', () => {
  beforeEach(async () => {
    await net.chain.rpc('anvil_setBalance', [account(5).address, '0xde0b6b3a7640000'])
  })

  test('behavior: the desk has one of its own, which carries no payment', async () => {
    await reopen({}, { deskKey })
    expect(desk.settlement.desk).toBe(account(5).address)
    expect(desk.settlement.status()[0]?.lanes.map(({ relayer }) => relayer)).toEqual([
      account(0).address,
      account(5).address,
    ])
    await setAutomine(net.chain, false)
    const paying = Array.from({ length: 6 }, () => desk.pay(signTransfer(network)))
    const running = run({ relayer: desk.settlement.desk })
    const free = run({ id: 'grant:1', kind: 'grant', product: 'gateway' })
    await until(() => transactions().length >= 3)
    await mineWhile(net.chain, Promise.all([...paying, running, free]))
    const fromDesk = transactions().filter(({ relayer }) => relayer === account(5).address)
    expect(fromDesk.map(({ kind }) => kind)).toEqual(['refund'])
  })

  test('behavior: a desk without gas takes nothing on, and payments go on', async () => {
    await net.chain.rpc('anvil_setBalance', [account(5).address, '0x1'])
    await reopen({}, { deskKey })
    expect(desk.settlement.isReady(network.id)).toBe(true)
    expect(await run({ relayer: desk.settlement.desk })).toMatchObject({ kind: 'unavailable' })
    expect(transactions()).toEqual([])
    expect((await desk.pay(signTransfer(network))).kind).toBe('confirmed')
  })

  test('behavior: without relayers that work the desk still does', async () => {
    await net.chain.rpc('anvil_setBalance', [account(0).address, '0x1'])
    await reopen({}, { deskKey })
    expect(desk.settlement.isReady(network.id)).toBe(false)
    expect((await desk.pay(signTransfer(network))).kind).toBe('unavailable')
    expect((await run({ relayer: desk.settlement.desk })).kind).toBe('confirmed')
  })

  test('behavior: the desk is the first relayer by default, on one lane', async () => {
    await reopen({}, { deskKey: Crypto.bytes(account(0).privateKey) })
    expect(desk.settlement.desk).toBe(account(0).address)
    expect(desk.settlement.status()[0]?.lanes).toHaveLength(1)
    expect((await run({ relayer: desk.settlement.desk })).kind).toBe('confirmed')
  })

  test('error: an account without a lane is told at once', async () => {
    expect(run({ relayer: receiver })).rejects.toThrow('has no lane')
    await until(() => transactions().length === 0)
  })

  test('behavior: one that was written goes on when its lane pauses', async () => {
    net.tap.intercept = ({ method }) =>
      isSend(method)
        ? { error: { code: -32000, message: 'insufficient funds for gas * price + value' } }
        : undefined
    expect((await run({}, 100)).kind).toBe('pending')
    await until(() => !desk.settlement.isReady(network.id))
    expect((await run({ id: 'refund:2' }, 100)).kind).toBe('unavailable')
    net.tap.intercept = undefined
    await until(() => stateOf() === 'confirmed')
    expect(desk.settlement.errand('refund:2')).toBeUndefined()
    expect(await moved()).toBe(7n)
  })

  test('behavior: waits for room in a full lane, and is not written when its time is over', async () => {
    await setAutomine(net.chain, false)
    const ids = Array.from({ length: 16 }, (_, index) => `refund:${index}`)
    await Promise.all(ids.map((id) => run({ id }, 20)))
    expect(transactions()).toHaveLength(16)
    expect(await run({ id: 'late' }, 50)).toMatchObject({ kind: 'unavailable' })
    expect(desk.settlement.errand('late')).toBeUndefined()
    const waiting = [run({ id: 'next' }), run({ id: 'next' })]
    await until(async () => {
      await mine(net.chain)
      return stateOf('next') === 'confirmed'
    })
    expect((await Promise.all(waiting)).map(({ kind }) => kind)).toEqual(['confirmed', 'confirmed'])
    expect(transactions()).toHaveLength(17)
    expect(await moved()).toBe(7n * 17n)
  })
})

describe('the gas budget', () => {
  const gasPerDayWei = {
    gateway: 10n ** 18n,
    facilitator: 0n,
    desk: 0n,
    sponsor: 100_000n * 10n ** 10n,
  }

  test('behavior: stops grants, never what is done with money that was paid', async () => {
    await reopen({ gasPerDayWei })
    expect(await run({ id: 'grant', kind: 'grant' })).toMatchObject({
      kind: 'unavailable',
      detail: 'The gas budget of today is spent.',
    })
    expect(transactions()).toEqual([])
    for (const kind of ['swap', 'allowance', 'refund'] as const)
      expect((await run({ id: kind, kind })).kind).toBe('confirmed')
  })

  test('behavior: counts what is given away, and what is under way', async () => {
    const grant = { kind: 'grant', product: 'sponsor', valueWei: 10n ** 15n } as const
    await reopen({ gasPerDayWei })
    await setAutomine(net.chain, false)
    expect((await run({ ...grant, id: 'grant:1' }, 20)).kind).toBe('pending')
    expect((await run({ ...grant, id: 'grant:2' }, 20)).kind).toBe('unavailable')
    await until(async () => {
      await mine(net.chain)
      return stateOf('grant:1') === 'confirmed'
    })
    expect((await run({ ...grant, id: 'grant:2' }, 20)).kind).toBe('unavailable')
    expect(await moved()).toBe(10n ** 15n)
  })
})
