import { describe, expect, test } from 'bun:test'
import { type Address, encodeFunctionData, type Hex, parseAbi } from 'viem'
import { createGroup } from '../../db/sqlite/write'
import * as Receipt from '../../src/chain/receipt'
import { findTransfers } from '../../src/chain/receipt'
import { account } from '../../src/demo/accounts'
import { balanceOf, execute, mine } from '../../src/demo/chains'
import * as Crypto from '../../src/protocol/Crypto'
import { deploy, setAutomine } from '../harness/chains'
import { outcomeOf } from '../harness/outcome'
import { type OwnSettlement, ownSettlement } from '../harness/own-settlement'
import { networkOf, relayerKey, signTransfer, until } from '../harness/settlement'
import { isPostgres } from '../harness/test-ledger'
import * as Wallets from '../harness/wallets'

const secondKey = Crypto.bytes(account(6).privateKey)
const second = account(6).address
const abi = parseAbi([
  'function mint(address to, uint256 value)',
  'function setPaused(bool value)',
  'function transfer(address to, uint256 value) returns (bool)',
  'function invalidateUnorderedNonces(uint256 word, uint256 mask)',
])

type Row = { nonce: number; kind: string; state: string; relayer: string; members: number }

function rows({ fixture }: OwnSettlement): Row[] {
  return fixture.sql
    .query<Row, []>(
      `SELECT nonce, kind, state, relayer, (SELECT count(*) FROM transaction_members
         WHERE transaction_hash = hash) members FROM transactions ORDER BY relayer, nonce, rowid`,
    )
    .all()
}

function logs({ fixture }: OwnSettlement): number {
  return fixture.sql.query('SELECT DISTINCT transaction_hash, log_index FROM payments').all().length
}

const kinds = (outcomes: readonly { kind: string }[]) => outcomes.map(({ kind }) => kind)
const amounts = ({ network }: OwnSettlement, count: number, from = 1) =>
  Array.from({ length: count }, (_, index) =>
    signTransfer(network, { from, amountAtomic: BigInt(100 + index) }),
  )
/** Records that the payers have no code, as any earlier payment would. */
const pay = ({ fixture }: OwnSettlement, transfers: ReturnType<typeof amounts>) =>
  Promise.all(transfers.map((transfer) => fixture.pay(transfer)))

const waiting = ({ fixture }: OwnSettlement) => fixture.settlement.details()[0]?.waiting ?? 0

/**
 * Pays while the relayer is busy with a payment of account 1, of 9 atomic units: the node answers its
 * simulation when all others wait, in this order. So they share one transaction if they can.
 */
async function payTogether(own: OwnSettlement, transfers: ReturnType<typeof amounts>) {
  const { net, network } = own
  const { intercept } = net.tap
  const first = signTransfer(network, { amountAtomic: 9n })
  const held = Promise.withResolvers<void>()
  let isHeld = false
  net.tap.intercept = async (call, forward) => {
    if (call.method !== 'eth_call' || !JSON.stringify(call.params).includes(first.nonce.slice(2)))
      return intercept?.(call, forward)
    isHeld = true
    await held.promise
    return undefined
  }
  const paying = [own.fixture.pay(first)]
  try {
    await until(() => isHeld && waiting(own) === 0)
    for (const [index, transfer] of transfers.entries()) {
      paying.push(own.fixture.pay(transfer))
      await until(() => waiting(own) > index)
    }
  } finally {
    held.resolve()
  }
  const [{ kind } = { kind: 'none' }, ...outcomes] = await Promise.all(paying)
  expect(kind).toBe('confirmed')
  return outcomes
}

/** Runs once, when the first batch is about to be included. */
function beforeBatch(own: OwnSettlement, action: () => Promise<void>): void {
  let isDone = false
  own.net.tap.intercept = async ({ method }) => {
    if (isDone || method !== 'eth_sendRawTransactionSync') return undefined
    if (rows(own).at(-1)?.kind !== 'batch') return undefined
    isDone = true
    await action()
    return undefined
  }
}

async function asDeployer(
  { net, network }: OwnSettlement,
  functionName: 'setPaused' | 'mint',
  args: readonly unknown[],
) {
  const data = encodeFunctionData({ abi, functionName, args } as Parameters<
    typeof encodeFunctionData
  >[0])
  await execute(net.chain, [{ from: account(9).address, to: network.asset.address, data }])
}

describe.concurrent('a batch', () => {
  test('a batch collects payments while the relayer is busy, each member with its own log', async () => {
    await using own = await ownSettlement()
    const transfers = [...amounts(own, 12), ...amounts(own, 12, 2)]
    const outcomes = await payTogether(own, transfers)
    expect(kinds(outcomes)).toEqual(Array(24).fill('confirmed'))
    expect(rows(own).map(({ kind, members }) => [kind, members])).toEqual([
      ['payment', 1],
      ['batch', 24],
    ])
    expect(logs(own)).toBe(25)
    expect(await own.paid()).toBe(transfers.reduce((sum, each) => sum + each.amountAtomic, 9n))
  })

  test('a batch may mix both transfer methods and several payers', async () => {
    await using own = await ownSettlement()
    const { network } = own
    const transfers = [1, 2, 3].flatMap((from) =>
      (from < 3 ? (['eip3009', 'permit2'] as const) : (['eip3009'] as const)).flatMap((method) =>
        [1n, 2n, 3n].map((amountAtomic) => signTransfer(network, { from, method, amountAtomic })),
      ),
    )
    // Same payer and amount by both methods: their logs are equal.
    expect(kinds(await pay(own, transfers))).toEqual(transfers.map(() => 'confirmed'))
    expect(logs(own)).toBe(transfers.length)
  })

  test('a batch takes far fewer calls than payments', async () => {
    await using own = await ownSettlement()
    const { net } = own
    await pay(own, amounts(own, 4))
    net.tap.calls.length = 0
    await payTogether(own, [...amounts(own, 12), ...amounts(own, 12, 2), ...amounts(own, 8, 3)])
    const simulated = net.tap.calls.filter(({ method }) => /^eth_(call|send)/.test(method))
    // On a busy machine the 32 payments become more batches.
    expect(simulated.length).toBeLessThan(16)
  })

  test('members whose logs are equal never share one, and all are paid', async () => {
    await using own = await ownSettlement()
    const { network } = own
    await pay(own, amounts(own, 3))
    const equal = Array.from({ length: 6 }, () => signTransfer(network))
    expect(kinds(await pay(own, equal))).toEqual(Array(6).fill('confirmed'))
    const shared = own.fixture.sql
      .query(
        `SELECT transaction_hash FROM payments GROUP BY transaction_hash, payer, payee, amount_atomic
         HAVING count(*) > 1`,
      )
      .all()
    expect(shared).toEqual([])
    expect(logs(own)).toBe(9)
  })

  test('a batch respects its limits', async () => {
    await using own = await ownSettlement()
    await own.reopen({ batchMax: 4 })
    await pay(own, amounts(own, 3))
    expect(kinds(await pay(own, amounts(own, 12, 2)))).toEqual(Array(12).fill('confirmed'))
    expect(Math.max(...rows(own).map(({ members }) => members))).toBe(4)
  })

  test('error: payments of one payer above its balance are refused, and other members are paid', async () => {
    await using own = await ownSettlement()
    const { network } = own
    await pay(own, [...amounts(own, 2), ...amounts(own, 2, 3)])
    const poor = [1n, 2n].map((more) =>
      signTransfer(network, { from: 3, amountAtomic: 6_000_000_000n + more }),
    )
    const outcomes = await payTogether(own, [...poor, ...amounts(own, 6)])
    expect(kinds(outcomes)).toEqual(['confirmed', 'unavailable', ...Array(6).fill('confirmed')])
  })

  test('error: refused members get their reason, and the others are sent', async () => {
    await using own = await ownSettlement()
    const { network } = own
    await pay(own, [...amounts(own, 2), ...amounts(own, 2, 3)])
    const bad = signTransfer(network, { from: 3, amountAtomic: 10n ** 15n })
    const outcomes = await payTogether(own, [...amounts(own, 4), bad])
    expect(kinds(outcomes)).toEqual([...Array(4).fill('confirmed'), 'refused'])
    expect(outcomes[4]).toMatchObject({ reason: 'invalid_exact_evm_insufficient_balance' })
    expect(rows(own).at(-1)).toMatchObject({ kind: 'batch', members: 4 })
  })

  test('error: the same money twice is sent once', async () => {
    await using own = await ownSettlement()
    await pay(own, amounts(own, 2))
    const [first] = amounts(own, 1)
    if (!first) throw new Error('no transfer')
    const others = amounts(own, 5, 2)
    const outcomes = await pay(own, [first, ...others, first, first])
    expect(kinds(outcomes)).toEqual(Array(8).fill('confirmed'))
    expect(rows(own).reduce((sum, { members }) => sum + members, 0)).toBe(2 + 6)
  })

  test('payers with code never share one', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    const wallet = await deploy(net.chain, Wallets.SmartWallet, [account(1).address])
    await asDeployer(own, 'mint', [wallet, 1_000_000n])
    // A payer with a key of its own that delegated (EIP-7702).
    const delegate = await deploy(net.chain, Wallets.SmartWallet, [account(4).address])
    const code = await net.chain.rpc('eth_getCode', [delegate, 'latest'])
    await net.chain.rpc('anvil_setCode', [account(4).address, code])
    const owner = await net.chain.rpc('eth_getStorageAt', [delegate, '0x0', 'latest'])
    const slot = `0x${'0'.repeat(64)}`
    await net.chain.rpc('anvil_setStorageAt', [account(4).address, slot, owner])
    await pay(own, amounts(own, 3))
    const outcomes = await pay(own, [
      ...amounts(own, 4),
      signTransfer(network, { payer: wallet, amountAtomic: 7n }),
      signTransfer(network, { from: 4, amountAtomic: 8n }),
      ...amounts(own, 4, 2),
    ])
    expect(kinds(outcomes)).toEqual(Array(10).fill('confirmed'))
    const alone = own.fixture.sql
      .query<{ kind: string }, []>(
        `SELECT kind FROM payments JOIN transactions ON hash = transaction_hash
         WHERE amount_atomic IN ('7', '8')`,
      )
      .all()
    expect(alone).toEqual([{ kind: 'payment' }, { kind: 'payment' }])
  })
})

describe.concurrent('a member that fails on chain', () => {
  test('a member whose balance was moved meanwhile fails alone', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    await pay(own, [...amounts(own, 2), ...amounts(own, 2, 2)])
    const gone = signTransfer(network, { from: 2, amountAtomic: 5_000n })
    beforeBatch(own, async () => {
      const all = await balanceOf(net.chain, network.asset.address, account(2).address)
      const data = encodeFunctionData({
        abi,
        functionName: 'transfer',
        args: [account(8).address, all],
      })
      await execute(net.chain, [{ from: account(2).address, to: network.asset.address, data }])
    })
    const outcomes = await payTogether(own, [...amounts(own, 5), gone])
    expect(kinds(outcomes)).toEqual([...Array(5).fill('confirmed'), 'reverted'])
    // The transaction succeeded. The member's own call did not, and it does not pass alone either.
    expect(rows(own).at(-1)).toMatchObject({ kind: 'batch', state: 'mined', members: 6 })
  })

  test('a member whose nonce was cancelled meanwhile ends alone', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    await pay(own, [...amounts(own, 2), ...amounts(own, 2, 2)])
    const gone = signTransfer(network, { from: 2, method: 'permit2', amountAtomic: 5_000n })
    const nonce = BigInt(gone.nonce)
    beforeBatch(own, async () => {
      const args = [nonce >> 8n, 1n << (nonce & 0xffn)] as const
      const data = encodeFunctionData({ abi, functionName: 'invalidateUnorderedNonces', args })
      const to: Address = '0x000000000022D473030F116dDEE9F6B43aC78BA3'
      await execute(net.chain, [{ from: account(2).address, to, data }])
    })
    const outcomes = await payTogether(own, [...amounts(own, 5), gone])
    expect(kinds(outcomes)).toEqual([...Array(5).fill('confirmed'), 'dead'])
  })
})

describe.concurrent('a batch that fails as a whole', () => {
  test('members of a failed batch are sent again, each alone, and are paid', async () => {
    await using own = await ownSettlement()
    await pay(own, [...amounts(own, 1), ...amounts(own, 1, 2), ...amounts(own, 1, 3)])
    const batches = () => rows(own).filter(({ kind }) => kind === 'batch').length
    const before = batches()
    let isOver = false
    beforeBatch(own, async () => {
      await asDeployer(own, 'setPaused', [true])
      isOver = true
    })
    const transfers = [...amounts(own, 2), ...amounts(own, 2, 2), ...amounts(own, 1, 3)]
    const paying = pay(own, transfers)
    await until(
      () => isOver && rows(own).some(({ kind, state }) => kind === 'batch' && state === 'mined'),
    )
    await asDeployer(own, 'setPaused', [false])
    await paying
    // Members that were simulated while the token was paused may be tried again by their buyers.
    for (const transfer of transfers) {
      await until(async () => {
        const payment = await own.fixture.settlement.find(transfer)
        if (!payment) throw new Error('no payment')
        const again = await own.fixture.settlement.resume(payment, transfer, { waitMs: 120_000 })
        return again.kind === 'confirmed'
      })
    }
    expect(batches()).toBe(before + 1)
    expect(logs(own)).toBe(8)
  })

  test('after a batch ran out of gas every member is paid alone, without a loop', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    await pay(own, amounts(own, 3))
    let isOver = false
    net.tap.intercept = async ({ method }, forward) => {
      if (isOver || method !== 'eth_sendRawTransactionSync') return undefined
      if (rows(own).at(-1)?.kind !== 'batch') return undefined
      isOver = true
      // Far above any limit: no call of the batch can finish.
      const code = (await net.chain.rpc('eth_getCode', [network.asset.address, 'latest'])) as Hex
      await net.chain.rpc('anvil_setCode', [network.asset.address, '0xfe'])
      const response = await forward()
      await net.chain.rpc('anvil_setCode', [network.asset.address, code])
      return response
    }
    expect(kinds(await payTogether(own, amounts(own, 5)))).toEqual(Array(5).fill('confirmed'))
    const later = rows(own).slice(-5)
    expect(later.map(({ kind, members }) => `${kind} ${members}`)).toEqual(
      Array(5).fill('payment 1'),
    )
    expect(await own.paid()).toBe(100n + 101n + 102n + 9n + 510n)
  })
})

describe.concurrent('several relayers', () => {
  test('several relayers send payments, each with its own nonces', async () => {
    await using own = await ownSettlement()
    const { net } = own
    await own.reopen({}, { relayerKeys: [relayerKey, secondKey] })
    await setAutomine(net.chain, false)
    const paying = [pay(own, amounts(own, 1)), pay(own, amounts(own, 1, 2))]
    await until(() => rows(own).length === 2)
    // The bytes are on the disk before the node gets them.
    await until(
      async () =>
        (await net.chain.rpc('eth_getBlockTransactionCountByNumber', ['pending'])) === '0x2',
    )
    await mine(net.chain)
    expect(kinds((await Promise.all(paying)).flat())).toEqual(['confirmed', 'confirmed'])
    expect(new Set(rows(own).map(({ relayer }) => relayer)).size).toBe(2)
    await setAutomine(net.chain, true)
    expect(own.fixture.settlement.status()[0]?.relayers).toMatchObject([
      { relayer: account(0).address, ready: true, inFlight: 0 },
      { relayer: second, ready: true, inFlight: 0 },
    ])
  })

  test('a relayer without gas is skipped, and the network stays ready', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    await net.chain.rpc('anvil_setBalance', [account(0).address, '0x1'])
    await own.reopen({}, { relayerKeys: [relayerKey, secondKey] })
    expect(own.fixture.settlement.isReady(network.id)).toBe(true)
    expect(own.fixture.settlement.status()).toMatchObject([
      { ready: true, relayers: [{ ready: false }, { ready: true }] },
    ])
    expect(kinds(await pay(own, amounts(own, 8)))).toEqual(Array(8).fill('confirmed'))
    expect(new Set(rows(own).map(({ relayer }) => relayer))).toEqual(new Set([second]))
  })

  test('the queue of a relayer that a node refuses goes to the others', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    await own.reopen({}, { relayerKeys: [relayerKey, secondKey] })
    const refused = { error: { code: -32000, message: 'insufficient funds for gas' } }
    let bytes: unknown
    net.tap.intercept = ({ method, params }) => {
      if (!method.startsWith('eth_sendRawTransaction')) return undefined
      bytes ??= params[0]
      return params[0] === bytes ? refused : undefined
    }
    const waiting = await own.begin(signTransfer(network))
    await until(
      () => own.fixture.settlement.status()[0]?.relayers.some(({ ready }) => !ready) === true,
    )
    expect(own.fixture.settlement.isReady(network.id)).toBe(true)
    expect(kinds(await pay(own, amounts(own, 4, 2)))).toEqual(Array(4).fill('confirmed'))
    expect((await own.fixture.settlement.findById(waiting.id))?.state).toBe('broadcast')
  })

  test('error: when no relayer can send, nothing is written', async () => {
    await using own = await ownSettlement()
    const { net } = own
    for (const { address } of [account(0), account(6)]) {
      await net.chain.rpc('anvil_setBalance', [address, '0x1'])
    }
    await own.reopen({}, { relayerKeys: [relayerKey, secondKey] })
    expect(kinds(await pay(own, amounts(own, 2)))).toEqual(['unavailable', 'unavailable'])
    expect(rows(own)).toEqual([])
  })
})

describe.concurrent('many transactions in progress', () => {
  test('on a slow chain batches follow each other without a gap', async () => {
    await using own = await ownSettlement()
    const { net } = own
    await own.reopen({ batchMax: 4 })
    await pay(own, amounts(own, 3))
    await setAutomine(net.chain, false)
    const paying = pay(own, [...amounts(own, 12), ...amounts(own, 12, 2)])
    await until(() => (own.fixture.settlement.status()[0]?.relayers[0]?.inFlight ?? 0) >= 6)
    await setAutomine(net.chain, true)
    await mine(net.chain)
    expect(kinds(await paying)).toEqual(Array(24).fill('confirmed'))
    const nonces = rows(own).map(({ nonce }) => nonce)
    expect(nonces).toEqual(nonces.map((_, index) => (nonces[0] ?? 0) + index))
  })

  test('error: a payment that expires in the queue is never written', async () => {
    await using own = await ownSettlement()
    const { net } = own
    await own.reopen({ batchMax: 1 })
    await setAutomine(net.chain, false)
    await Promise.all(amounts(own, 16).map((transfer) => own.begin(transfer)))
    const late = amounts(own, 4).map((transfer) => own.fixture.pay(transfer, {}, { waitMs: 100 }))
    expect(kinds(await Promise.all(late))).toEqual(Array(4).fill('unavailable'))
    expect(rows(own)).toHaveLength(16)
  })
})

describe.concurrent('logs', () => {
  const transfer = signTransfer(networkOf('http://localhost'))
  const log = (index: number) => ({
    address: transfer.asset,
    topics: [
      Receipt.transferTopic,
      Receipt.addressTopic(transfer.payer),
      Receipt.addressTopic(transfer.payee),
    ],
    data: `0x${transfer.amountAtomic.toString(16).padStart(64, '0')}` as Hex,
    index,
  })

  test('equal transfers have the same logs, and other transfers have none', () => {
    const both = [3, 5]
    expect(findTransfers([log(3), log(5)], [transfer, transfer])).toEqual([both, both])
    const other = { ...transfer, amountAtomic: transfer.amountAtomic + 1n }
    expect(findTransfers([log(3)], [other, transfer])).toEqual([[], [3]])
  })
})

/** How SQLite shares commits; PostgreSQL's way is in test/db/postgres-commits.test.ts. */
const sqliteTest = test.skipIf(isPostgres)

describe.concurrent('shared commits', () => {
  const put = ({ fixture }: OwnSettlement, key: string) =>
    fixture.db.sqlite.run('INSERT INTO meta (key, value) VALUES (?, ?)', [key, 'x'])
  const keys = ({ fixture }: OwnSettlement) =>
    fixture.db.sqlite.query<{ key: string }, []>("SELECT key FROM meta WHERE value = 'x'").all()

  sqliteTest('writes of one turn of the event loop share a commit', async () => {
    await using own = await ownSettlement()
    const group = createGroup(own.fixture.db)
    const all = ['a', 'b', 'c'].map((key) => group.add(() => put(own, key).changes))
    expect(keys(own)).toEqual([])
    expect(await Promise.all(all)).toEqual([1, 1, 1])
    expect(own.fixture.db.sqlite.inTransaction).toBe(false)
    expect(keys(own)).toHaveLength(3)
    expect(group.commits()).toBe(1)
  })

  sqliteTest('error: a write that fails does not affect the others', async () => {
    await using own = await ownSettlement()
    const group = createGroup(own.fixture.db)
    const ends = await Promise.allSettled([
      group.add(() => put(own, 'a').changes),
      group.add(() => {
        put(own, 'half')
        return put(own, 'a').changes
      }),
      group.add(() => put(own, 'b').changes),
    ])
    expect(ends.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled'])
    expect(keys(own).map(({ key }) => key)).toEqual(['a', 'b'])
  })
  sqliteTest('only records that can be restored do not wait for the disk', async () => {
    await using own = await ownSettlement()
    const group = createGroup(own.fixture.db)
    const level = () =>
      own.fixture.db.sqlite.query<{ synchronous: number }, []>('PRAGMA synchronous').get()
        ?.synchronous
    const [full, normal] = [2, 1]
    const levels: unknown[] = []
    const look = (key: string) => () => {
      levels.push(level())
      return put(own, key).changes
    }
    await group.addSoon(look('a'))
    await Promise.all([group.addSoon(look('b')), group.add(look('c'))])
    expect(await outcomeOf(group.addSoon(look('a')))).toThrow('UNIQUE')
    expect(levels).toEqual([normal, normal, normal, normal])
    expect(level()).toBe(full)
    await own.fixture.db.sync()
    expect(keys(own)).toHaveLength(3)
  })
})
