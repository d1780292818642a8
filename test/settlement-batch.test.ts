import { afterEach, beforeEach, describe, expect, test } from 'bun:test'
import { type Address, encodeFunctionData, type Hex, parseAbi } from 'viem'
import { createGroup } from '../db/group'
import * as Token from '../src/chain/token'
import type { NetworkConfig } from '../src/config/Config'
import { account } from '../src/demo/accounts'
import { balanceOf, deploy, execute, mine, setAutomine } from '../src/demo/chains'
import * as Artifacts from '../src/demo/contracts/artifacts'
import * as Crypto from '../src/protocol/Crypto'
import { assign } from '../src/settlement/assign'
import {
  type Desk,
  networkOf,
  payee,
  relayerKey,
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

const secondKey = Crypto.bytes(account(6).privateKey)
const second = account(6).address
const abi = parseAbi([
  'function mint(address to, uint256 value)',
  'function setPaused(bool value)',
  'function transfer(address to, uint256 value) returns (bool)',
  'function invalidateUnorderedNonces(uint256 word, uint256 mask)',
])

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

async function reopen(
  options: { changes?: Partial<NetworkConfig>; relayerKeys?: readonly Uint8Array[] } = {},
): Promise<void> {
  await desk.stop()
  const { changes, ...others } = options
  desk = await startDesk([{ ...network, ...changes }], directory.path, others)
}

type Row = { nonce: number; kind: string; state: string; relayer: string; members: number }

function rows(): Row[] {
  return desk.db.sqlite
    .query<Row, []>(
      `SELECT nonce, kind, state, relayer, (SELECT count(*) FROM transaction_members
         WHERE transaction_hash = hash) members FROM transactions ORDER BY relayer, nonce, rowid`,
    )
    .all()
}

function logs(): number {
  return desk.db.sqlite.query('SELECT DISTINCT transaction_hash, log_index FROM payments').all()
    .length
}

const paid = () => balanceOf(net.chain, network.asset.address, payee)
const kinds = (outcomes: readonly { kind: string }[]) => outcomes.map(({ kind }) => kind)
const amounts = (count: number, from = 1) =>
  Array.from({ length: count }, (_, index) =>
    signTransfer(network, { from, amountAtomic: BigInt(100 + index) }),
  )
/** Learns that the payers have no code, as any payment before would. */
const pay = (transfers: ReturnType<typeof amounts>) =>
  Promise.all(transfers.map((transfer) => desk.pay(transfer)))

/** Runs once, when the first batch is about to be included. */
function beforeBatch(action: () => Promise<void>): void {
  let isDone = false
  net.tap.intercept = async ({ method }) => {
    if (isDone || method !== 'eth_sendRawTransactionSync') return undefined
    if (rows().at(-1)?.kind !== 'batch') return undefined
    isDone = true
    await action()
    return undefined
  }
}

async function asDeployer(functionName: 'setPaused' | 'mint', args: readonly unknown[]) {
  const data = encodeFunctionData({ abi, functionName, args } as Parameters<
    typeof encodeFunctionData
  >[0])
  await execute(net.chain, [{ from: account(9).address, to: network.asset.address, data }])
}

describe('a batch', () => {
  test('behavior: carries what comes while the lane is busy, each member with its own log', async () => {
    const outcomes = await pay(amounts(24))
    expect(kinds(outcomes)).toEqual(Array(24).fill('confirmed'))
    expect(rows().some(({ kind, members }) => kind === 'batch' && members > 8)).toBe(true)
    expect(rows().reduce((sum, { members }) => sum + members, 0)).toBe(24)
    expect(logs()).toBe(24)
    expect(await paid()).toBe(amounts(24).reduce((sum, each) => sum + each.amountAtomic, 0n))
  })

  test('behavior: mixes both transfer methods and several payers', async () => {
    const transfers = [1, 2, 3].flatMap((from) =>
      (from < 3 ? (['eip3009', 'permit2'] as const) : (['eip3009'] as const)).flatMap((method) =>
        [1n, 2n, 3n].map((amountAtomic) => signTransfer(network, { from, method, amountAtomic })),
      ),
    )
    // Same payer and amount by both methods: their logs are equal.
    expect(kinds(await pay(transfers))).toEqual(transfers.map(() => 'confirmed'))
    expect(logs()).toBe(transfers.length)
  })

  test('behavior: takes far fewer calls than payments', async () => {
    await pay(amounts(4))
    net.tap.calls.length = 0
    await pay(amounts(32))
    const counted = net.tap.calls.filter(({ method }) => /^eth_(call|send)/.test(method))
    expect(counted.length).toBeLessThan(10)
  })

  test('behavior: members whose logs are equal never share one, and all are paid', async () => {
    await pay(amounts(3))
    const equal = Array.from({ length: 6 }, () => signTransfer(network))
    expect(kinds(await pay(equal))).toEqual(Array(6).fill('confirmed'))
    const shared = desk.db.sqlite
      .query(
        `SELECT transaction_hash FROM payments GROUP BY transaction_hash, payer, payee, amount_atomic
         HAVING count(*) > 1`,
      )
      .all()
    expect(shared).toEqual([])
    expect(logs()).toBe(9)
  })

  test('behavior: respects its limits', async () => {
    await reopen({ changes: { batchMax: 4 } })
    await pay(amounts(3))
    expect(kinds(await pay(amounts(12, 2)))).toEqual(Array(12).fill('confirmed'))
    expect(Math.max(...rows().map(({ members }) => members))).toBe(4)
  })

  test('error: what one payer has is spent in sequence, and its neighbours are paid', async () => {
    await pay([...amounts(2), ...amounts(2, 3)])
    const poor = [1n, 2n].map((more) =>
      signTransfer(network, { from: 3, amountAtomic: 6_000_000_000n + more }),
    )
    const outcomes = await pay([...poor, ...amounts(6)])
    expect(kinds(outcomes)).toEqual(['confirmed', 'unavailable', ...Array(6).fill('confirmed')])
  })

  test('error: refused members are told why, and the others leave', async () => {
    await pay([...amounts(2), ...amounts(2, 3)])
    const bad = signTransfer(network, { from: 3, amountAtomic: 10n ** 15n })
    const outcomes = await pay([...amounts(4), bad])
    expect(kinds(outcomes)).toEqual([...Array(4).fill('confirmed'), 'refused'])
    expect(outcomes[4]).toMatchObject({ reason: 'invalid_exact_evm_insufficient_balance' })
    expect(rows().at(-1)).toMatchObject({ kind: 'batch', members: 4 })
  })

  test('error: the same money twice goes once', async () => {
    await pay(amounts(2))
    const [first] = amounts(1)
    if (!first) throw new Error('no transfer')
    const others = amounts(5, 2)
    const outcomes = await pay([first, ...others, first, first])
    expect(kinds(outcomes)).toEqual(Array(8).fill('confirmed'))
    expect(rows().reduce((sum, { members }) => sum + members, 0)).toBe(2 + 6)
  })

  test('behavior: payers with code never share one', async () => {
    const wallet = await deploy(net.chain, Artifacts.SmartWallet, [account(1).address])
    await asDeployer('mint', [wallet, 1_000_000n])
    // A payer with a key of its own that delegated (EIP-7702).
    const delegate = await deploy(net.chain, Artifacts.SmartWallet, [account(4).address])
    const code = await net.chain.rpc('eth_getCode', [delegate, 'latest'])
    await net.chain.rpc('anvil_setCode', [account(4).address, code])
    const owner = await net.chain.rpc('eth_getStorageAt', [delegate, '0x0', 'latest'])
    const slot = `0x${'0'.repeat(64)}`
    await net.chain.rpc('anvil_setStorageAt', [account(4).address, slot, owner])
    await pay(amounts(3))
    const outcomes = await pay([
      ...amounts(4),
      signTransfer(network, { payer: wallet, amountAtomic: 7n }),
      signTransfer(network, { from: 4, amountAtomic: 8n }),
      ...amounts(4, 2),
    ])
    expect(kinds(outcomes)).toEqual(Array(10).fill('confirmed'))
    const alone = desk.db.sqlite
      .query<{ kind: string }, []>(
        `SELECT kind FROM payments JOIN transactions ON hash = transaction_hash
         WHERE amount_atomic IN ('7', '8')`,
      )
      .all()
    expect(alone).toEqual([{ kind: 'payment' }, { kind: 'payment' }])
  })
})

describe('a member that fails on chain', () => {
  test('behavior: fails alone when its money has left meanwhile', async () => {
    await pay([...amounts(2), ...amounts(2, 2)])
    const gone = signTransfer(network, { from: 2, amountAtomic: 5_000n })
    beforeBatch(async () => {
      const all = await balanceOf(net.chain, network.asset.address, account(2).address)
      const data = encodeFunctionData({
        abi,
        functionName: 'transfer',
        args: [account(8).address, all],
      })
      await execute(net.chain, [{ from: account(2).address, to: network.asset.address, data }])
    })
    const outcomes = await pay([...amounts(5), gone])
    expect(kinds(outcomes)).toEqual([...Array(5).fill('confirmed'), 'reverted'])
    // The transaction succeeded; the member's own call did not, and alone it does not pass either.
    expect(rows().at(-1)).toMatchObject({ kind: 'batch', state: 'mined', members: 6 })
  })

  test('behavior: is dead alone when its nonce was cancelled meanwhile', async () => {
    await pay([...amounts(2), ...amounts(2, 2)])
    const gone = signTransfer(network, { from: 2, method: 'permit2', amountAtomic: 5_000n })
    const nonce = BigInt(gone.nonce)
    beforeBatch(async () => {
      const args = [nonce >> 8n, 1n << (nonce & 0xffn)] as const
      const data = encodeFunctionData({ abi, functionName: 'invalidateUnorderedNonces', args })
      const to: Address = '0x000000000022D473030F116dDEE9F6B43aC78BA3'
      await execute(net.chain, [{ from: account(2).address, to, data }])
    })
    const outcomes = await pay([...amounts(5), gone])
    expect(kinds(outcomes)).toEqual([...Array(5).fill('confirmed'), 'dead'])
  })
})

describe('a batch that fails as a whole', () => {
  test('behavior: its members go once more, each alone, and are paid', async () => {
    await pay([...amounts(1), ...amounts(1, 2), ...amounts(1, 3)])
    const batches = () => rows().filter(({ kind }) => kind === 'batch').length
    const before = batches()
    let isOver = false
    beforeBatch(async () => {
      await asDeployer('setPaused', [true])
      isOver = true
    })
    const transfers = [...amounts(2), ...amounts(2, 2), ...amounts(1, 3)]
    const paying = pay(transfers)
    await until(
      () => isOver && rows().some(({ kind, state }) => kind === 'batch' && state === 'mined'),
    )
    await asDeployer('setPaused', [false])
    await paying
    // Those that were looked at while the token was paused may be tried again by their buyers.
    for (const transfer of transfers) {
      await until(async () => {
        const payment = desk.settlement.find(transfer)
        if (!payment) throw new Error('no payment')
        const again = await desk.settlement.resume(payment, transfer, { waitMs: 10_000 })
        return again.kind === 'confirmed'
      })
    }
    expect(batches()).toBe(before + 1)
    expect(logs()).toBe(8)
  })

  test('behavior: out of gas, every member is paid alone, without a loop', async () => {
    await pay(amounts(3))
    let isOver = false
    net.tap.intercept = async ({ method }, forward) => {
      if (isOver || method !== 'eth_sendRawTransactionSync') return undefined
      if (rows().at(-1)?.kind !== 'batch') return undefined
      isOver = true
      // Far dearer than any limit: no call of the batch can finish.
      const code = (await net.chain.rpc('eth_getCode', [network.asset.address, 'latest'])) as Hex
      await net.chain.rpc('anvil_setCode', [network.asset.address, '0xfe'])
      const response = await forward()
      await net.chain.rpc('anvil_setCode', [network.asset.address, code])
      return response
    }
    expect(kinds(await pay(amounts(5)))).toEqual(Array(5).fill('confirmed'))
    const later = rows().slice(-5)
    expect(later.map(({ kind, members }) => `${kind} ${members}`)).toEqual(
      Array(5).fill('payment 1'),
    )
    expect(await paid()).toBe(100n + 101n + 102n + 510n)
  })
})

describe('several lanes', () => {
  test('behavior: share the work, each with its own nonces', async () => {
    await reopen({ relayerKeys: [relayerKey, secondKey] })
    await setAutomine(net.chain, false)
    const paying = [pay(amounts(1)), pay(amounts(1, 2))]
    await until(() => rows().length === 2)
    // On the disk comes before at the node.
    await until(
      async () =>
        (await net.chain.rpc('eth_getBlockTransactionCountByNumber', ['pending'])) === '0x2',
    )
    await mine(net.chain)
    expect(kinds((await Promise.all(paying)).flat())).toEqual(['confirmed', 'confirmed'])
    expect(new Set(rows().map(({ relayer }) => relayer)).size).toBe(2)
    await setAutomine(net.chain, true)
    expect(desk.settlement.status()[0]?.lanes).toMatchObject([
      { relayer: account(0).address, ready: true, inFlight: 0 },
      { relayer: second, ready: true, inFlight: 0 },
    ])
  })

  test('behavior: a poor one is skipped, and the network stays ready', async () => {
    await net.chain.rpc('anvil_setBalance', [account(0).address, '0x1'])
    await reopen({ relayerKeys: [relayerKey, secondKey] })
    expect(desk.settlement.isReady(network.id)).toBe(true)
    expect(desk.settlement.status()).toMatchObject([
      { ready: true, lanes: [{ ready: false }, { ready: true }] },
    ])
    expect(kinds(await pay(amounts(8)))).toEqual(Array(8).fill('confirmed'))
    expect(new Set(rows().map(({ relayer }) => relayer))).toEqual(new Set([second]))
  })

  test('behavior: what waits for one that is refused goes to the others', async () => {
    await reopen({ relayerKeys: [relayerKey, secondKey] })
    const refused = { error: { code: -32000, message: 'insufficient funds for gas' } }
    let bytes: unknown
    net.tap.intercept = ({ method, params }) => {
      if (!method.startsWith('eth_sendRawTransaction')) return undefined
      bytes ??= params[0]
      return params[0] === bytes ? refused : undefined
    }
    const first = desk.pay(signTransfer(network), {}, { waitMs: 300 })
    await until(() => desk.settlement.status()[0]?.lanes.some(({ ready }) => !ready) === true)
    expect(desk.settlement.isReady(network.id)).toBe(true)
    expect(kinds(await pay(amounts(4, 2)))).toEqual(Array(4).fill('confirmed'))
    expect((await first).kind).toBe('pending')
    net.tap.intercept = undefined
  })

  test('error: when none can send, nothing is written', async () => {
    for (const { address } of [account(0), account(6)]) {
      await net.chain.rpc('anvil_setBalance', [address, '0x1'])
    }
    await reopen({ relayerKeys: [relayerKey, secondKey] })
    expect(kinds(await pay(amounts(2)))).toEqual(['unavailable', 'unavailable'])
    expect(rows()).toEqual([])
  })
})

describe('many transactions under way', () => {
  test('behavior: on a slow chain batches follow each other without a gap', async () => {
    await reopen({ changes: { batchMax: 4 } })
    await pay(amounts(3))
    await setAutomine(net.chain, false)
    const paying = pay(amounts(24, 2))
    await until(() => (desk.settlement.status()[0]?.lanes[0]?.inFlight ?? 0) >= 6)
    await setAutomine(net.chain, true)
    await mine(net.chain)
    expect(kinds(await paying)).toEqual(Array(24).fill('confirmed'))
    const nonces = rows().map(({ nonce }) => nonce)
    expect(nonces).toEqual(nonces.map((_, index) => (nonces[0] ?? 0) + index))
  })

  test('error: a payment that still waits when its time is over was never written', async () => {
    await reopen({ changes: { batchMax: 1 } })
    await setAutomine(net.chain, false)
    const outcomes = await Promise.all(
      amounts(20).map((transfer) => desk.pay(transfer, {}, { waitMs: 400 })),
    )
    const written = outcomes.filter(({ kind }) => kind === 'pending').length
    expect(written).toBe(16)
    expect(kinds(outcomes.slice(16))).toEqual(Array(4).fill('unavailable'))
    expect(rows()).toHaveLength(16)
  })
})

describe('logs', () => {
  const transfer = signTransfer(networkOf('http://localhost'))
  const log = (index: number) => ({
    address: transfer.asset,
    topics: [
      Token.transferTopic,
      Token.addressTopic(transfer.payer),
      Token.addressTopic(transfer.payee),
    ],
    data: `0x${transfer.amountAtomic.toString(16).padStart(64, '0')}` as Hex,
    index,
  })

  test('behavior: one pays for one, and never for a second', () => {
    expect(assign([log(3), log(5)], [transfer, transfer, transfer], new Set())).toEqual([
      3,
      5,
      undefined,
    ])
    expect(assign([log(3), log(5)], [transfer, transfer], new Set([3]))).toEqual([5, undefined])
    const other = { ...transfer, amountAtomic: transfer.amountAtomic + 1n }
    expect(assign([log(3)], [other, transfer], new Set())).toEqual([undefined, 3])
  })
})

describe('shared commits', () => {
  const put = (key: string) =>
    desk.db.sqlite.run('INSERT INTO meta (key, value) VALUES (?, ?)', [key, 'x'])
  const keys = () =>
    desk.db.sqlite.query<{ key: string }, []>("SELECT key FROM meta WHERE value = 'x'").all()

  test('behavior: what comes in one turn is on the disk together', async () => {
    const group = createGroup(desk.db)
    const all = ['a', 'b', 'c'].map((key) => group.add(() => put(key).changes))
    expect(keys()).toEqual([])
    expect(await Promise.all(all)).toEqual([1, 1, 1])
    expect(desk.db.sqlite.inTransaction).toBe(false)
    expect(keys()).toHaveLength(3)
    expect(group.commits()).toBe(1)
  })

  test('error: one that fails leaves the others alone', async () => {
    const group = createGroup(desk.db)
    const ends = await Promise.allSettled([
      group.add(() => put('a').changes),
      group.add(() => {
        put('half')
        return put('a').changes
      }),
      group.add(() => put('b').changes),
    ])
    expect(ends.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled'])
    expect(keys().map(({ key }) => key)).toEqual(['a', 'b'])
  })
  test('behavior: only what can be found out again does not wait for the disk', async () => {
    const group = createGroup(desk.db)
    const level = () =>
      desk.db.sqlite.query<{ synchronous: number }, []>('PRAGMA synchronous').get()?.synchronous
    const [full, normal] = [2, 1]
    const levels: unknown[] = []
    const look = (key: string) => () => {
      levels.push(level())
      return put(key).changes
    }
    await group.addSoon(look('a'))
    await Promise.all([group.addSoon(look('b')), group.add(look('c'))])
    await expect(group.addSoon(look('a'))).rejects.toThrow('UNIQUE')
    expect(levels).toEqual([normal, full, full, normal])
    expect(level()).toBe(full)
    await desk.db.sync()
    expect(keys()).toHaveLength(3)
  })
})
