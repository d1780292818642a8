import { afterEach, beforeEach, describe, expect, test } from 'bun:test'
import type { NetworkConfig } from '../src/config/Config'
import { account } from '../src/demo/accounts'
import { balanceOf, execute, mine, setAutomine } from '../src/demo/chains'
import * as Transfer from '../src/protocol/Transfer'
import {
  type Desk,
  networkOf,
  payee,
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

const isSend = (method: string) => method.startsWith('eth_sendRawTransaction')
/** A node without eth_sendRawTransactionSync. */
const withoutSync = ({ method }: { method: string }) =>
  method === 'eth_sendRawTransactionSync'
    ? { error: { code: -32601, message: 'the method does not exist' } }
    : undefined
const rejection = (message: string) => ({ error: { code: -32000, message } })

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

async function reopen(changes: Partial<NetworkConfig> = {}): Promise<void> {
  await desk.crash()
  desk = await startDesk([{ ...network, ...changes }], directory.path)
}

function stateOf(transfer: Parameters<Desk['settlement']['find']>[0]) {
  return desk.settlement.find(transfer)?.state
}

function transactionRows() {
  return desk.db.sqlite
    .query<{ nonce: number; state: string; kind: string; hash: string }, []>(
      'SELECT nonce, state, kind, hash FROM transactions ORDER BY nonce, created_at, rowid',
    )
    .all()
}

async function paid(): Promise<bigint> {
  return balanceOf(net.chain, network.asset.address, payee)
}

describe('an unknown fate', () => {
  test('behavior: is pending, with the bytes on the disk before they left', async () => {
    await setAutomine(net.chain, false)
    const transfer = signTransfer(network)
    let stored: unknown
    net.tap.intercept = ({ method }) => {
      if (isSend(method)) stored ??= transactionRows()
      return undefined
    }
    const outcome = await desk.pay(transfer, {}, { waitMs: 100 })
    if (outcome.kind !== 'pending') throw new Error(outcome.kind)
    expect(stored).toMatchObject([{ state: 'sent', hash: outcome.payment.transaction }])
    const waiting = desk.settlement.resume(outcome.payment, transfer, { waitMs: 10_000 })
    await mine(net.chain)
    expect(await waiting).toMatchObject({
      kind: 'confirmed',
      payment: { transaction: outcome.payment.transaction },
    })
    expect(await paid()).toBe(5_000n)
  })

  test('behavior: a lost answer to the send is found out by the receipt', async () => {
    net.tap.intercept = async ({ method }, forward) => {
      if (!isSend(method)) return undefined
      await (await forward()).text()
      return new Response('gone', { status: 502 })
    }
    expect(await desk.pay(signTransfer(network))).toMatchObject({ kind: 'confirmed' })
    expect(transactionRows()).toMatchObject([{ state: 'mined' }])
  })

  test('behavior: bytes that never arrived are sent again', async () => {
    let isLost = false
    net.tap.intercept = ({ method }) => {
      if (!isSend(method) || isLost) return undefined
      isLost = true
      return new Response('lost', { status: 503 })
    }
    expect(await desk.pay(signTransfer(network))).toMatchObject({ kind: 'confirmed' })
    expect(await paid()).toBe(5_000n)
  })

  test('behavior: an answer that says the bytes are known is no fault', async () => {
    net.tap.intercept = async ({ method }, forward) => {
      if (!isSend(method)) return undefined
      await (await forward()).text()
      return rejection('already known')
    }
    expect(await desk.pay(signTransfer(network))).toMatchObject({ kind: 'confirmed' })
  })
})

describe('after a restart', () => {
  test('behavior: bytes that never arrived are sent, and pay once', async () => {
    const transfer = signTransfer(network)
    net.tap.intercept = ({ method }) =>
      isSend(method) ? new Response('lost', { status: 503 }) : undefined
    expect((await desk.pay(transfer, {}, { waitMs: 50 })).kind).toBe('pending')
    net.tap.intercept = undefined
    await reopen()
    await until(() => stateOf(transfer) === 'confirmed')
    expect(await paid()).toBe(5_000n)
    expect(transactionRows()).toMatchObject([{ state: 'mined' }])
  })

  test('behavior: a transaction that was included meanwhile is found', async () => {
    await setAutomine(net.chain, false)
    const transfer = signTransfer(network, { method: 'permit2' })
    expect((await desk.pay(transfer, {}, { waitMs: 100 })).kind).toBe('pending')
    await desk.crash()
    await mine(net.chain)
    await setAutomine(net.chain, true)
    desk = await startDesk([network], directory.path)
    await until(() => stateOf(transfer) === 'confirmed')
    expect(await desk.pay(signTransfer(network))).toMatchObject({ kind: 'confirmed' })
    expect(transactionRows()).toMatchObject([{ state: 'mined' }, { state: 'mined' }])
    expect(await paid()).toBe(10_000n)
  })

  test('behavior: several in flight keep their nonces', async () => {
    await setAutomine(net.chain, false)
    const transfers = [1, 2, 3].map(() => signTransfer(network))
    await Promise.all(transfers.map((transfer) => desk.pay(transfer, {}, { waitMs: 50 })))
    await reopen()
    const late = signTransfer(network)
    const paying = desk.pay(late)
    await until(() => stateOf(late) === 'broadcast')
    await setAutomine(net.chain, true)
    await mine(net.chain)
    expect((await paying).kind).toBe('confirmed')
    await until(() => transfers.every((transfer) => stateOf(transfer) === 'confirmed'))
    expect(await paid()).toBe(20_000n)
    expect(new Set(transactionRows().map(({ nonce }) => nonce)).size).toBe(4)
  })

  test('behavior: what was signed and never sent is given up, and pays when asked again', async () => {
    const transfer = signTransfer(network)
    net.tap.intercept = ({ method }) =>
      isSend(method) ? new Response('lost', { status: 503 }) : undefined
    const outcome = await desk.pay(transfer, {}, { waitMs: 50 })
    if (outcome.kind !== 'pending') throw new Error(outcome.kind)
    unsend(outcome.payment.transaction)
    net.tap.intercept = undefined
    await reopen()
    expect(transactionRows()).toMatchObject([{ state: 'replaced' }])
    expect(stateOf(transfer)).toBe('reverted')
    expect(await paid()).toBe(0n)
    const again = await desk.settlement.resume(outcome.payment, transfer, { waitMs: 10_000 })
    expect(again.kind).toBe('confirmed')
    const rows = transactionRows()
    expect(new Set(rows.map(({ nonce }) => nonce)).size).toBe(1)
    expect(rows.filter(({ state }) => state === 'mined')).toHaveLength(1)
    expect(await paid()).toBe(5_000n)
  })

  test('behavior: a nonce that was never sent is filled when others wait above it', async () => {
    const [first, second] = [signTransfer(network), signTransfer(network)]
    net.tap.intercept = ({ method }) =>
      isSend(method) ? new Response('lost', { status: 503 }) : undefined
    const outcome = await desk.pay(first, {}, { waitMs: 20 })
    await desk.pay(second, {}, { waitMs: 20 })
    if (outcome.kind !== 'pending') throw new Error(outcome.kind)
    unsend(outcome.payment.transaction)
    net.tap.intercept = undefined
    await reopen()
    await until(() => stateOf(second) === 'confirmed')
    expect(stateOf(first)).toBe('reverted')
    expect(transactionRows()).toMatchObject([
      { state: 'replaced', kind: 'payment' },
      { state: 'mined', kind: 'cancel' },
      { state: 'mined', kind: 'payment' },
    ])
  })

  test('behavior: somebody else settled meanwhile', async () => {
    const transfer = signTransfer(network)
    net.tap.intercept = ({ method }) =>
      isSend(method) ? new Response('lost', { status: 503 }) : undefined
    const outcome = await desk.pay(transfer, { bound: true }, { waitMs: 20 })
    if (outcome.kind !== 'pending') throw new Error(outcome.kind)
    await desk.crash()
    const [receipt] = await execute(net.chain, [
      { from: account(8).address, ...Transfer.call(transfer), gas: 500_000n },
    ])
    net.tap.intercept = undefined
    desk = await startDesk([network], directory.path)
    await until(() => stateOf(transfer) === 'confirmed')
    expect(desk.settlement.find(transfer)?.transaction).toBe(receipt?.transactionHash ?? '0x')
    expect(await paid()).toBe(5_000n)
  })

  test('behavior: an authorization that ran out is expired by the chain, not by the clock', async () => {
    const transfer = signTransfer(network, { validBefore: seconds() + 60n })
    net.tap.intercept = ({ method }) =>
      isSend(method) ? new Response('lost', { status: 503 }) : undefined
    const outcome = await desk.pay(transfer, {}, { waitMs: 20 })
    if (outcome.kind !== 'pending') throw new Error(outcome.kind)
    await desk.crash()
    desk = await startDesk([network], directory.path, { now: () => Date.now() + 120_000 })
    expect(stateOf(transfer)).toBe('broadcast')
    await net.chain.rpc('evm_increaseTime', [120])
    await mine(net.chain)
    await until(() => stateOf(transfer) === 'expired')
    const dead = await desk.settlement.resume(outcome.payment, transfer, { waitMs: 10 })
    expect(dead).toMatchObject({
      kind: 'dead',
      reason: 'invalid_exact_evm_payload_authorization_valid_before',
    })
  })
})

describe('the lane', () => {
  test('behavior: an account nonce used by another program costs a new signature, not money', async () => {
    let isTaken = false
    net.tap.intercept = async ({ method }) => {
      if (!isSend(method) || isTaken) return undefined
      isTaken = true
      await execute(net.chain, [{ from: account(0).address, to: account(8).address, value: 1n }])
      return undefined
    }
    expect(await desk.pay(signTransfer(network))).toMatchObject({ kind: 'confirmed' })
    expect(transactionRows()).toMatchObject([{ state: 'replaced' }, { state: 'mined' }])
    expect(await paid()).toBe(5_000n)
  })

  test('behavior: pauses when the node refuses, and goes on with the same bytes', async () => {
    const transfer = signTransfer(network)
    net.tap.intercept = ({ method }) =>
      isSend(method) ? rejection('insufficient funds for gas * price + value') : undefined
    const outcome = await desk.pay(transfer, {}, { waitMs: 100 })
    if (outcome.kind !== 'pending') throw new Error(outcome.kind)
    expect(desk.settlement.isReady(network.id)).toBe(false)
    expect(desk.settlement.status()).toMatchObject([
      { ready: false, reason: 'the relayer cannot pay for gas' },
    ])
    expect((await desk.pay(signTransfer(network))).kind).toBe('unavailable')
    net.tap.intercept = undefined
    await until(() => stateOf(transfer) === 'confirmed')
    await until(() => desk.settlement.isReady(network.id))
    expect(desk.settlement.find(transfer)?.transaction).toBe(outcome.payment.transaction)
  })

  test('behavior: a stuck transaction is replaced at its nonce with higher fees', async () => {
    net.tap.intercept = withoutSync
    await setAutomine(net.chain, false)
    await reopen({ replaceAfterSeconds: 0.2 })
    const transfer = signTransfer(network)
    const paying = desk.pay(transfer)
    await until(() => transactionRows().length > 1)
    await mine(net.chain)
    expect((await paying).kind).toBe('confirmed')
    const rows = transactionRows()
    expect(new Set(rows.map(({ nonce }) => nonce)).size).toBe(1)
    expect(rows.filter(({ state }) => state === 'mined')).toHaveLength(1)
    expect(rows.filter(({ state }) => state === 'replaced')).toHaveLength(rows.length - 1)
    expect(await paid()).toBe(5_000n)
  })

  test('behavior: a lane that stood still at the fee cap goes on when its nonce is used', async () => {
    net.tap.intercept = withoutSync
    await setAutomine(net.chain, false)
    await reopen({ replaceAfterSeconds: 0.2, feeCapWei: 1_200_000_000n })
    const transfer = signTransfer(network)
    const paying = desk.pay(transfer)
    await until(() => desk.settlement.status()[0]?.reason?.includes('fee cap') === true)
    expect(desk.settlement.isReady(network.id)).toBe(false)
    const [row] = transactionRows()
    const fee = '0xee6b2800'
    await net.chain.rpc('eth_sendTransaction', [
      {
        from: account(0).address,
        to: account(0).address,
        nonce: `0x${(row?.nonce ?? 0).toString(16)}`,
        gas: '0x5208',
        maxFeePerGas: fee,
        maxPriorityFeePerGas: fee,
      },
    ])
    await until(async () => {
      await mine(net.chain)
      return stateOf(transfer) === 'confirmed'
    })
    expect((await paying).kind).toBe('confirmed')
    expect(desk.settlement.isReady(network.id)).toBe(true)
    expect(await paid()).toBe(5_000n)
  })

  test('behavior: a payload that ran out is replaced by an empty transaction', async () => {
    net.tap.intercept = withoutSync
    await setAutomine(net.chain, false)
    let ahead = 0
    await desk.crash()
    desk = await startDesk([{ ...network, replaceAfterSeconds: 0.2 }], directory.path, {
      now: () => Date.now() + ahead,
    })
    const transfer = signTransfer(network, { validBefore: seconds() + 60n })
    const paying = desk.pay(transfer)
    await until(() => stateOf(transfer) === 'broadcast')
    ahead = 120_000
    await net.chain.rpc('evm_increaseTime', [120])
    await until(() => transactionRows().some(({ kind }) => kind === 'cancel'))
    await until(async () => {
      await mine(net.chain)
      return transactionRows().some(({ state }) => state === 'mined' || state === 'failed')
    })
    expect(await paying).toMatchObject({ kind: 'dead', payment: { state: 'expired' } })
    expect(await paid()).toBe(0n)
  })

  test('behavior: waits for the configured confirmations', async () => {
    await reopen({ confirmations: 3 })
    const transfer = signTransfer(network)
    const outcome = await desk.pay(transfer, {}, { waitMs: 100 })
    expect(outcome.kind).toBe('pending')
    await mine(net.chain, 2)
    await until(() => stateOf(transfer) === 'confirmed')
  })

  test('behavior: a chain that lost its blocks does not block the lane', async () => {
    const id = await net.chain.rpc('evm_snapshot', [])
    await desk.pay(signTransfer(network))
    await desk.pay(signTransfer(network))
    await desk.crash()
    await net.chain.rpc('evm_revert', [id])
    desk = await startDesk([network], directory.path)
    expect((await desk.pay(signTransfer(network))).kind).toBe('confirmed')
  })

  test('behavior: a nonce that the chain lost is filled, so that later ones are included', async () => {
    const id = await net.chain.rpc('evm_snapshot', [])
    await desk.pay(signTransfer(network))
    const transfer = signTransfer(network)
    net.tap.intercept = ({ method }) =>
      isSend(method) ? new Response('lost', { status: 503 }) : undefined
    expect((await desk.pay(transfer, {}, { waitMs: 20 })).kind).toBe('pending')
    // What the database knows is sent again; here somebody else used the nonce.
    for (const of of [
      "transaction_members WHERE transaction_hash IN (SELECT hash FROM transactions WHERE state = 'mined')",
      "transactions WHERE state = 'mined'",
      "payments WHERE state = 'confirmed'",
    ])
      desk.db.sqlite.run(`DELETE FROM ${of}`)
    await desk.crash()
    await net.chain.rpc('evm_revert', [id])
    net.tap.intercept = withoutSync
    desk = await startDesk([network], directory.path)
    await until(() => stateOf(transfer) === 'confirmed')
    expect(desk.events.some(({ event }) => event === 'nonce-gap')).toBe(true)
  })

  test('behavior: pays the base fee of the block that was simulated', async () => {
    await desk.stop()
    desk = await startDesk([network], directory.path, { checkMs: 60_000 })
    await net.chain.rpc('anvil_setNextBlockBaseFeePerGas', ['0x4a817c800'])
    await mine(net.chain)
    expect((await desk.pay(signTransfer(network))).kind).toBe('confirmed')
  })
})

describe('a reorganisation', () => {
  test('behavior: sends the same bytes again and leaves the delivery alone', async () => {
    const id = await net.chain.rpc('evm_snapshot', [])
    const transfer = signTransfer(network)
    const outcome = await desk.pay(transfer)
    if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
    const { settlement } = desk
    await settlement.beginDelivery(outcome.payment.id)
    await settlement.endDelivery(outcome.payment.id, {
      delivered: true,
      upstreamStatus: 200,
      truncated: false,
    })
    await net.chain.rpc('evm_revert', [id])
    expect(await paid()).toBe(0n)
    await until(() => desk.events.some(({ event }) => event === 'transaction-reorganised'))
    await until(() => stateOf(transfer) === 'confirmed')
    expect(await paid()).toBe(5_000n)
    expect(settlement.find(transfer)).toMatchObject({
      transaction: outcome.payment.transaction,
      delivery: 'delivered',
      attempts: 1,
    })
    expect(transactionRows()).toMatchObject([{ state: 'mined' }])
  })
})

describe('readiness', () => {
  test('behavior: names what is wrong without the URL, and comes back', async () => {
    await desk.stop()
    net.tap.intercept = () => new Response('no', { status: 503 })
    const secret = `${net.tap.url}/v2/secret-key`
    desk = await startDesk([{ ...network, rpcUrls: [secret] }], directory.path)
    const [status] = desk.settlement.status()
    expect(status).toMatchObject({ ready: false, relayer: account(0).address })
    expect(status?.reason).toContain(new URL(secret).host)
    expect(JSON.stringify([status, desk.events], printBigint)).not.toContain('secret-key')
    expect((await desk.pay(signTransfer(network))).kind).toBe('unavailable')
    net.tap.intercept = undefined
    await until(() => desk.settlement.isReady(network.id))
    expect((await desk.pay(signTransfer(network))).kind).toBe('confirmed')
  })

  const wrong: [string, () => Promise<NetworkConfig> | NetworkConfig, string][] = [
    ['chain', () => ({ ...network, chainId: 1 }), 'is not chain 1'],
    [
      'signing domain',
      () => ({ ...network, asset: { ...network.asset, eip712: { name: 'USDG', version: '1' } } }),
      'DOMAIN_SEPARATOR of USDG',
    ],
    [
      'asset',
      () => ({ ...network, asset: { ...network.asset, address: account(6).address } }),
      'USDG is not at',
    ],
    [
      'balance',
      async () => {
        await net.chain.rpc('anvil_setBalance', [account(0).address, '0x1'])
        return network
      },
      'holds 1 wei, too little for gas',
    ],
  ]
  for (const [name, make, reason] of wrong) {
    test(`error: a wrong ${name} is not ready`, async () => {
      const config = await make()
      await desk.stop()
      desk = await startDesk([config], directory.path)
      expect(desk.settlement.isReady(network.id)).toBe(false)
      expect(desk.settlement.status()[0]?.reason).toContain(reason)
    })
  }

  test('behavior: a second URL takes over', async () => {
    await desk.stop()
    const rpcUrls = ['http://127.0.0.1:1', net.chain.url]
    desk = await startDesk([{ ...network, rpcUrls }], directory.path)
    expect((await desk.pay(signTransfer(network))).kind).toBe('confirmed')
  })
})

function seconds(): bigint {
  return BigInt(Math.floor(Date.now() / 1000))
}

/** Makes a transaction look as if the process had ended before its first send. */
function unsend(hash: string): void {
  desk.db.sqlite.run(
    "UPDATE transactions SET state = 'signed', first_sent_at = NULL WHERE hash = ?",
    [hash],
  )
}

function printBigint(_: string, value: unknown): unknown {
  return typeof value === 'bigint' ? value.toString() : value
}
