import { afterAll, afterEach, beforeEach, describe, expect, test } from 'bun:test'
import { type Address, encodeFunctionData, parseAbi, parseTransaction } from 'viem'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { balanceOf, execute, mine } from '../../src/demo/chains'
import type { Outcome } from '../../src/settlement/send/Outcome'
import { createFailures, type Payer } from '../../src/settlement/state/payers'
import { deploy, setAutomine } from '../harness/chains'
import { isSend, withoutSync } from '../harness/own-settlement'
import {
  networkOf,
  payee,
  type SettlementFixture,
  signTransfer,
  startFixture,
  startNetwork,
  temporary,
  until,
} from '../harness/settlement'
import * as Wallets from '../harness/wallets'

const net = await startNetwork('usdg')
const network = networkOf(net.tap.url, 'usdg')
const abi = parseAbi([
  'function mint(address to, uint256 value)',
  'function transfer(address to, uint256 value)',
  'function setMode(uint8 mode)',
])
const modes = { honest: 0, burn: 1, simulationOnly: 2, refuse: 3 } as const

let directory: ReturnType<typeof temporary>
let fixture: SettlementFixture
let offsetMs = 0

async function open(changes: Partial<NetworkConfig> = {}): Promise<void> {
  fixture = await startFixture([{ ...network, ...changes }], directory.path, {
    now: () => Date.now() + offsetMs,
  })
  net.tap.calls.length = 0
}

beforeEach(async () => {
  net.tap.intercept = undefined
  offsetMs = 0
  directory = temporary()
  await open()
})

afterEach(async () => {
  await setAutomine(net.chain, true)
  await fixture.stop()
  directory.remove()
})

afterAll(() => net.stop())

const call = (
  from: number,
  to: Address,
  functionName: 'mint' | 'transfer' | 'setMode',
  args: unknown[],
) => ({
  from: account(from).address,
  to,
  data: encodeFunctionData({ abi, functionName, args } as Parameters<typeof encodeFunctionData>[0]),
  gas: 500_000n,
})

/** A wallet of account 1 with a balance of a thousand, in a mode of its contract. */
async function greedy(mode: keyof typeof modes): Promise<Address> {
  const owner = account(1).address
  const wallet = await deploy(net.chain, Wallets.GreedyWallet, [owner, modes[mode]])
  await execute(net.chain, [call(9, network.asset.address, 'mint', [wallet, 1_000_000_000n])])
  return wallet
}

const sends = () => net.tap.calls.filter(({ method }) => isSend(method)).length
const relayerWei = async () =>
  BigInt((await net.chain.rpc('eth_getBalance', [account(0).address, 'latest'])) as string)

function transactions() {
  return fixture.sql
    .query<{ state: string; gas_limit: string; raw: string }, []>(
      'SELECT state, gas_limit, raw FROM transactions ORDER BY nonce, created_at, rowid',
    )
    .all()
}

/** Runs something between the simulation and the transaction. */
function betwixt(change: () => Promise<unknown>): void {
  net.tap.intercept = async ({ method }) => {
    if (isSend(method)) await change()
    return undefined
  }
}

describe('a wallet whose transactions fail (attack 13)', () => {
  for (const mode of ['burn', 'simulationOnly', 'refuse'] as const)
    test(`error: a wallet with ${mode} in every call is refused before it costs gas`, async () => {
      const payer = await greedy(mode)
      const before = await relayerWei()
      for (const method of ['eip3009', 'permit2'] as const)
        expect(await fixture.pay(signTransfer(network, { payer, method }))).toMatchObject({
          kind: 'refused',
        })
      expect(await relayerWei()).toBe(before)
      expect(transactions()).toEqual([])
    })

  for (const mode of ['burn', 'refuse'] as const)
    test(`error: a wallet with ${mode} in the transaction alone costs limited gas and is locked out`, async () => {
      const payer = await greedy('honest')
      expect((await fixture.pay(signTransfer(network, { payer }))).kind).toBe('confirmed')
      const set = (next: keyof typeof modes) =>
        execute(net.chain, [call(1, payer, 'setMode', [modes[next]])])
      betwixt(() => set(mode))
      const before = await relayerWei()
      for (let failure = 0; failure < 5; failure++) {
        const outcome = await fixture.pay(signTransfer(network, { payer }))
        expect(outcome.kind).toBe('reverted')
        await set('honest')
      }
      const rows = transactions().slice(1)
      expect(rows.map(({ state }) => state)).toEqual(Array(5).fill('failed'))
      let most = 0n
      for (const { gas_limit, raw } of rows) {
        expect(BigInt(gas_limit)).toBeLessThanOrEqual(600_000n)
        const { maxFeePerGas, gas } = parseTransaction(raw as `0x02${string}`)
        expect(gas).toBe(BigInt(gas_limit))
        most += (gas ?? 0n) * (maxFeePerGas ?? 0n)
      }
      expect(before - (await relayerWei())).toBeLessThanOrEqual(most)
      net.tap.intercept = undefined

      // The payment is not even simulated.
      net.tap.calls.length = 0
      const locked = await fixture.pay(signTransfer(network, { payer }))
      expect(locked).toMatchObject({ kind: 'unavailable' })
      if (locked.kind !== 'unavailable') throw new Error(locked.kind)
      expect(locked.retryAfterSeconds).toBeGreaterThan(0)
      expect(locked.retryAfterSeconds).toBeLessThanOrEqual(120)
      expect(net.tap.calls.filter(({ method }) => method === 'eth_call')).toEqual([])
      // An old credential may not try again either.
      const old = fixture.sql
        .query<{ id: string }, []>("SELECT id FROM payments WHERE state = 'reverted' LIMIT 1")
        .get()
      const known = await fixture.settlement.findById(old?.id ?? '')
      if (!known) throw new Error('no payment')
      expect(
        await fixture.settlement.resume(known, known.transfer, { waitMs: 5_000 }),
      ).toMatchObject({
        kind: 'unavailable',
      })
      // Other payers are not affected.
      expect((await fixture.pay(signTransfer(network))).kind).toBe('confirmed')

      offsetMs += locked.retryAfterSeconds * 1_000
      expect((await fixture.pay(signTransfer(network, { payer }))).kind).toBe('confirmed')
    })

  test('error: concurrent payments of a wallet are limited to its allowed failures', async () => {
    const payer = await greedy('honest')
    expect((await fixture.pay(signTransfer(network, { payer }))).kind).toBe('confirmed')
    const { promise, resolve } = Promise.withResolvers<void>()
    betwixt(() => promise)
    let refused = 0
    const paying = Array.from({ length: 12 }, async (_, index) => {
      const amountAtomic = 100n + BigInt(index)
      const outcome = await fixture.pay(signTransfer(network, { payer, amountAtomic }))
      if (outcome.kind === 'unavailable') refused++
    })
    await until(() => refused === 7)
    await execute(net.chain, [call(1, payer, 'setMode', [modes.burn])])
    resolve()
    await Promise.all(paying)
    expect(transactions().length).toBeLessThanOrEqual(6)
    expect(await fixture.pay(signTransfer(network, { payer }))).toMatchObject({
      kind: 'unavailable',
    })
  })
})

describe('a payer with a key (attacks 10, 11, 13)', () => {
  test('error: a payer that moves its balance away each time is locked out, and no other payer', async () => {
    const { asset } = network
    const from = 2
    const payer = account(from).address
    const balance = await balanceOf(net.chain, asset.address, payer)
    const move = () =>
      execute(net.chain, [call(from, asset.address, 'transfer', [account(6).address, balance])])
    const back = () => execute(net.chain, [call(6, asset.address, 'transfer', [payer, balance])])
    betwixt(move)
    const kinds: Outcome['kind'][] = []
    for (let round = 0; round < 6; round++) {
      const outcome = await fixture.pay(signTransfer(network, { from }))
      kinds.push(outcome.kind)
      if (outcome.kind !== 'unavailable') await back()
    }
    expect(kinds).toEqual([...Array(5).fill('reverted'), 'unavailable'])
    net.tap.intercept = undefined
    expect((await fixture.pay(signTransfer(network, { from: 1 }))).kind).toBe('confirmed')
  })

  test('error: forged credentials in the name of a payer do not count against it', async () => {
    const victim = account(2).address
    const before = sends()
    for (let round = 0; round < 20; round++) {
      const junk = { ...signTransfer(network, { from: 1 }), payer: victim }
      expect((await fixture.pay(junk)).kind).toBe('refused')
      const poor = signTransfer(network, { from: 2, amountAtomic: 10n ** 15n })
      expect((await fixture.pay(poor)).kind).toBe('refused')
    }
    expect(sends()).toBe(before)
    expect((await fixture.pay(signTransfer(network, { from: 2 }))).kind).toBe('confirmed')
  })

  for (const method of ['eip3009', 'permit2'] as const)
    test(`error: a payer cannot use its balance twice with ${method} (attack 10)`, async () => {
      const from = 1
      const balance = await balanceOf(net.chain, network.asset.address, account(from).address)
      const amountAtomic = balance / 3n + 1n
      const pay = () => fixture.pay(signTransfer(network, { from, method, amountAtomic }))
      const outcomes = await Promise.all(Array.from({ length: 8 }, pay))
      const kinds = outcomes.map(({ kind }) => kind)
      for (const kind of kinds) expect(['confirmed', 'unavailable', 'refused']).toContain(kind)
      // A payment that is included but not recorded yet still reserves its money, so the second one
      // may be asked to come again.
      let confirmed = kinds.filter((kind) => kind === 'confirmed').length
      expect(confirmed).toBeGreaterThan(0)
      let next = await pay()
      for (; next.kind === 'confirmed'; next = await pay()) confirmed++
      expect(next.kind).toBe('refused')
      expect(confirmed).toBe(2)
      expect(transactions().every(({ state }) => state === 'mined')).toBe(true)
      await execute(net.chain, [
        call(9, network.asset.address, 'mint', [account(from).address, 2n * amountAtomic]),
      ])
    })
})

describe('the gas', () => {
  test('no transaction bids more than the cap', async () => {
    await fixture.stop()
    await open({ feeCapWei: 2_000_000_000n })
    expect((await fixture.pay(signTransfer(network))).kind).toBe('confirmed')
    for (const { raw } of transactions())
      expect(parseTransaction(raw as `0x02${string}`).maxFeePerGas).toBeLessThanOrEqual(
        2_000_000_000n,
      )
  })

  test('a base fee above the cap pauses the network before a payment', async () => {
    await net.chain.rpc('anvil_setNextBlockBaseFeePerGas', ['0x174876e800'])
    await mine(net.chain)
    await until(() => !fixture.settlement.isReady(network.id))
    expect((await fixture.pay(signTransfer(network))).kind).toBe('unavailable')
    expect(transactions()).toEqual([])
    await net.chain.rpc('anvil_setNextBlockBaseFeePerGas', ['0x3b9aca00'])
    await mine(net.chain)
    await until(() => fixture.settlement.isReady(network.id))
    expect((await fixture.pay(signTransfer(network))).kind).toBe('confirmed')
  })

  test('a spent budget of one product does not affect those of the others', async () => {
    await fixture.stop()
    await open({
      gasPerDayWei: { gateway: 1n, facilitator: 10n ** 18n, desk: 1n, sponsor: 0n, channels: 0n },
    })
    expect((await fixture.pay(signTransfer(network))).kind).toBe('confirmed')
    expect(await fixture.pay(signTransfer(network))).toMatchObject({ kind: 'unavailable' })
    const other = await fixture.pay(signTransfer(network), { product: 'facilitator' })
    expect(other.kind).toBe('confirmed')
    // A day is a UTC day.
    offsetMs = 24 * 60 * 60 * 1_000
    const validBefore = BigInt(Math.floor((Date.now() + offsetMs) / 1000) + 300)
    expect((await fixture.pay(signTransfer(network, { validBefore }))).kind).toBe('confirmed')
  })
})

describe('a replaced transaction (attack 36)', () => {
  test('the first transaction succeeds although a replacement was sent', async () => {
    await fixture.stop()
    await open({ replaceAfterSeconds: 0.2 })
    await setAutomine(net.chain, false)
    const seen: string[] = []
    net.tap.intercept = (call) => {
      const { method, params } = call
      if (!isSend(method)) return undefined
      const unknown = withoutSync(call)
      if (unknown) return unknown
      if (!seen.includes(String(params[0]))) seen.push(String(params[0]))
      // The replacement never reaches the node.
      return params[0] === seen[0] ? undefined : new Response('lost', { status: 503 })
    }
    const before = await balanceOf(net.chain, network.asset.address, payee)
    const paying = fixture.pay(signTransfer(network))
    await until(() => seen.length >= 2)
    const [first, second] = seen.map((raw) => parseTransaction(raw as `0x02${string}`))
    expect(second?.nonce).toBe(first?.nonce)
    for (const fee of ['maxFeePerGas', 'maxPriorityFeePerGas'] as const)
      expect((second?.[fee] ?? 0n) * 10n).toBeGreaterThanOrEqual((first?.[fee] ?? 0n) * 11n)
    await mine(net.chain)
    const outcome = await paying
    if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
    const rows = transactions()
    expect(rows[0]).toMatchObject({ raw: seen[0], state: 'mined' })
    expect(rows.slice(1).every(({ state }) => state === 'replaced')).toBe(true)
    expect(await balanceOf(net.chain, network.asset.address, payee)).toBe(before + 5_000n)
  })
})

describe('the budget of a payer', () => {
  const key = (address: string): Payer => ({ address, code: 'unknown', isNew: false })
  const wallet = (address: string, isNew = false): Payer => ({
    address,
    code: { key: 'hash of the factory' },
    isNew,
  })

  test('a payer has five failures, and one more each two minutes', () => {
    let now = 1_000_000
    const failures = createFailures(() => now)
    for (let failure = 0; failure < 5; failure++) {
      expect(failures.waitSeconds(key('0xa'))).toBe(0)
      failures.record(key('0xa'))
    }
    expect(failures.waitSeconds(key('0xa'))).toBe(120)
    expect(failures.waitSeconds(key('0xb'))).toBe(0)
    now += 120_000
    expect(failures.waitSeconds(key('0xa'))).toBe(0)
    failures.record(key('0xa'))
    expect(failures.waitSeconds(key('0xa'))).toBe(120)
    failures.record(key('0xa'))
    expect(failures.waitSeconds(key('0xa'))).toBe(120)
    now += 600_000
    expect(failures.waitSeconds(key('0xa'))).toBe(0)
    now -= 86_400_000
    expect(failures.waitSeconds(key('0xa'))).toBe(0)
  })

  test('attack: failures that have expired make room before those that still count', () => {
    let now = 1_000_000
    const failures = createFailures(() => now)
    for (let failure = 0; failure < 5; failure++) failures.record(key('0xa'))
    for (let other = 0; other < 10_000; other++) {
      failures.record(key(`0x${other}`))
      now += 45
    }
    // Of the five failures 150 s are left.
    for (let failure = 0; failure < 3; failure++) failures.record(key('0xa'))
    expect(failures.waitSeconds(key('0xa'))).toBe(30)
  })

  test('payments in progress of a payer with code or with failures are limited', () => {
    const failures = createFailures(() => 5)
    const ends = Array.from({ length: 5 }, () => failures.begin(key('0xa')))
    expect(failures.waitSeconds(key('0xa'))).toBe(0)
    expect(failures.waitSeconds(wallet('0xa'))).toBe(1)
    ends[0]?.()
    ends[0]?.()
    expect(failures.waitSeconds(wallet('0xa'))).toBe(0)
    const oneMore = failures.begin(wallet('0xa'))
    expect(failures.waitSeconds(wallet('0xa'))).toBe(1)
    oneMore()
    failures.record(key('0xa'))
    expect(failures.waitSeconds(key('0xa'))).toBe(1)
    for (const end of ends) end()
    expect(failures.waitSeconds(key('0xa'))).toBe(0)
  })

  test('payments in progress of any payer are limited, with a higher limit after a payment', () => {
    const failures = createFailures(() => 5)
    expect(failures.roomOf('0xa')).toBe(16)
    const ends = Array.from({ length: 16 }, () => failures.begin(key('0xa')))
    expect(failures.roomOf('0xa')).toBe(0)
    for (const end of ends) {
      failures.recordPaid(key('0xa'))
      end()
    }
    expect(failures.roomOf('0xa')).toBe(32)
    for (let payment = 0; payment < 1_000; payment++) failures.recordPaid(key('0xa'))
    expect(failures.roomOf('0xa')).toBe(64)
    expect(failures.roomOf('0xb')).toBe(16)
  })

  test('a wallet that never paid has one failure, one that has paid five', () => {
    let now = 1_000_000
    const failures = createFailures(() => now)
    failures.record(wallet('0xa', true))
    expect(failures.waitSeconds(wallet('0xa', true))).toBe(120)
    now += 120_000
    expect(failures.waitSeconds(wallet('0xa', true))).toBe(0)
    const end = failures.begin(wallet('0xa', true))
    expect(failures.waitSeconds(wallet('0xa', true))).toBe(1)
    end()
    failures.record(wallet('0xb'))
    expect(failures.waitSeconds(wallet('0xb'))).toBe(0)
  })

  test('new wallets with the same code share five failures, others do not suffer', () => {
    const failures = createFailures(() => 5)
    for (let made = 0; made < 5; made++) failures.record(wallet(`0x${made}`, true))
    expect(failures.waitSeconds(wallet('0xnew', true))).toBe(120)
    // Before its code is known, and with other code.
    expect(failures.waitSeconds({ address: '0xnew', code: 'unknown', isNew: true })).toBe(0)
    const other: Payer = { address: '0xnew', code: { key: 'another hash' }, isNew: true }
    expect(failures.waitSeconds(other)).toBe(0)
    expect(failures.waitSeconds(wallet('0xold'))).toBe(0)
    expect(failures.waitSeconds(key('0xkey'))).toBe(0)
  })

  test('each wallet of a code that paid gives the new ones one failure more', () => {
    let now = 1_000_000
    const failures = createFailures(() => now)
    for (let paid = 0; paid < 5; paid++) {
      failures.recordPaid(wallet(`0xpaid${paid}`, paid % 2 === 0))
      // Once each, however often it pays.
      failures.recordPaid(wallet(`0xpaid${paid}`))
    }
    for (let made = 0; made < 10; made++) {
      expect(failures.waitSeconds(wallet('0xnew', true))).toBe(0)
      failures.record(wallet(`0x${made}`, true))
    }
    expect(failures.waitSeconds(wallet('0xnew', true))).toBe(60)
    now += 60_000
    expect(failures.waitSeconds(wallet('0xnew', true))).toBe(0)
    // With an upper limit, however many have paid.
    for (let paid = 0; paid < 500; paid++) failures.recordPaid(wallet(`0xmore${paid}`, true))
    for (let made = 0; made < 100; made++) failures.record(wallet(`0xother${made}`, true))
    expect(failures.waitSeconds(wallet('0xnew', true))).toBeGreaterThan(0)
  })

  test('attack: a failure of a wallet that has paid does not count against other wallets', () => {
    const failures = createFailures(() => 5)
    for (let made = 0; made < 5; made++) failures.record(wallet('0xpaid'))
    expect(failures.waitSeconds(wallet('0xpaid'))).toBe(120)
    expect(failures.waitSeconds(wallet('0xnew', true))).toBe(0)
  })

  test('failures are stored for a limited number of payers, the newest', () => {
    const failures = createFailures(() => 5)
    const last = 10_099
    for (let payer = 0; payer <= last; payer++)
      // One is enough for a payer to be stored.
      for (let failure = 0; failure < (payer === 0 || payer === last ? 5 : 1); failure++)
        failures.record(key(`0x${payer}`))
    expect(failures.waitSeconds(key('0x10099'))).toBeGreaterThan(0)
    expect(failures.waitSeconds(key('0x0'))).toBe(0)
  })
})
