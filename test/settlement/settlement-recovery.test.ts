import { describe, expect, test } from 'bun:test'
import type { Payment } from '../../db/Payment'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { execute, mine, receiptOf } from '../../src/demo/chains'
import * as Amount from '../../src/protocol/Amount'
import * as Transfer from '../../src/protocol/Transfer'
import { setAutomine } from '../harness/chains'
import {
  isSend,
  losing,
  type OwnSettlement,
  ownSettlement,
  withoutSync,
} from '../harness/own-settlement'
import { errorOf } from '../harness/scripted-node'
import {
  mineWhile,
  type SettlementFixture,
  signTransfer,
  until,
  untilKnown,
} from '../harness/settlement'
import { fillDisk } from '../harness/test-ledger'

async function stateOf(
  { fixture }: OwnSettlement,
  transfer: Parameters<SettlementFixture['settlement']['find']>[0],
) {
  return (await fixture.settlement.find(transfer))?.state
}

function transactionRows({ fixture }: OwnSettlement) {
  return fixture.sql
    .query<{ nonce: number; state: string; kind: string; hash: string }, []>(
      'SELECT nonce, state, kind, hash FROM transactions ORDER BY nonce, created_at, rowid',
    )
    .all()
}

/** The state after another transaction used the account's nonce. */
function giveUp({ fixture }: OwnSettlement, { id, transaction }: Payment): void {
  fixture.sql.run("UPDATE transactions SET state = 'replaced' WHERE hash = ?", [transaction])
  fixture.sql.run("UPDATE payments SET state = 'reverted' WHERE id = ?", [id])
}

describe.concurrent('an unknown outcome', () => {
  test('an unknown outcome is pending, with the bytes on the disk before they were sent', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    await setAutomine(net.chain, false)
    const transfer = signTransfer(network)
    let stored: unknown
    net.tap.intercept = ({ method }) => {
      if (isSend(method)) stored ??= transactionRows(own)
      return undefined
    }
    const written = await own.begin(transfer)
    const outcome = await own.fixture.settlement.resume(written, transfer, { waitMs: 100 })
    if (outcome.kind !== 'pending') throw new Error(outcome.kind)
    expect(stored).toMatchObject([{ state: 'sent', hash: outcome.payment.transaction }])
    const waiting = own.fixture.settlement.resume(outcome.payment, transfer, { waitMs: 120_000 })
    expect(await mineWhile(net.chain, waiting)).toMatchObject({
      kind: 'confirmed',
      payment: { transaction: outcome.payment.transaction },
    })
    expect(await own.paid()).toBe(5_000n)
  })

  test('a lost answer to the send is replaced by the receipt', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    net.tap.intercept = async ({ method }, forward) => {
      if (!isSend(method)) return undefined
      await (await forward()).text()
      return new Response('gone', { status: 502 })
    }
    expect(await own.fixture.pay(signTransfer(network))).toMatchObject({ kind: 'confirmed' })
    expect(transactionRows(own)).toMatchObject([{ state: 'mined' }])
  })

  test('bytes that never arrived are sent again', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    let isLost = false
    net.tap.intercept = ({ method }) => {
      if (!isSend(method) || isLost) return undefined
      isLost = true
      return new Response('lost', { status: 503 })
    }
    expect(await own.fixture.pay(signTransfer(network))).toMatchObject({ kind: 'confirmed' })
    expect(await own.paid()).toBe(5_000n)
  })

  test('the answer "already known" is not a fault', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    net.tap.intercept = async ({ method }, forward) => {
      if (!isSend(method)) return undefined
      await (await forward()).text()
      return errorOf('already known')
    }
    expect(await own.fixture.pay(signTransfer(network))).toMatchObject({ kind: 'confirmed' })
  })
})

describe.concurrent('after a restart', () => {
  test('bytes that never arrived are sent, and pay once', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    const transfer = signTransfer(network)
    net.tap.intercept = losing
    await own.begin(transfer)
    await own.fixture.crash()
    net.tap.intercept = undefined
    await own.open()
    await until(async () => (await stateOf(own, transfer)) === 'confirmed')
    expect(await own.paid()).toBe(5_000n)
    expect(transactionRows(own)).toMatchObject([{ state: 'mined' }])
  })

  test('a transaction that was included meanwhile is found', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    await setAutomine(net.chain, false)
    const transfer = signTransfer(network, { method: 'permit2' })
    await untilKnown(net.chain, (await own.begin(transfer)).transaction)
    await own.fixture.crash()
    await mine(net.chain)
    await setAutomine(net.chain, true)
    await own.open()
    await until(async () => (await stateOf(own, transfer)) === 'confirmed')
    expect(await own.fixture.pay(signTransfer(network))).toMatchObject({ kind: 'confirmed' })
    expect(transactionRows(own)).toMatchObject([{ state: 'mined' }, { state: 'mined' }])
    expect(await own.paid()).toBe(10_000n)
  })

  test('several transactions in flight keep their nonces after a restart', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    await setAutomine(net.chain, false)
    const transfers = [1, 2, 3].map(() => signTransfer(network))
    await Promise.all(transfers.map((transfer) => own.begin(transfer)))
    await own.reopen()
    const late = signTransfer(network)
    const paying = own.fixture.pay(late)
    await until(async () => (await stateOf(own, late)) === 'broadcast')
    await setAutomine(net.chain, true)
    await mine(net.chain)
    expect((await paying).kind).toBe('confirmed')
    await until(async () => {
      const states = await Promise.all(transfers.map((each) => stateOf(own, each)))
      return states.every((state) => state === 'confirmed')
    })
    expect(await own.paid()).toBe(20_000n)
    expect(new Set(transactionRows(own).map(({ nonce }) => nonce)).size).toBe(4)
  })

  test('error: a payment whose expiry cannot be recorded is pending, not reverted', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    const transfer = signTransfer(network, { validBefore: seconds() + 60n })
    net.tap.intercept = losing
    const payment = await own.begin(transfer)
    giveUp(own, payment)
    await own.fixture.crash()
    net.tap.intercept = undefined
    await own.open()
    expect(await stateOf(own, transfer)).toBe('reverted')
    await net.chain.rpc('evm_increaseTime', [120])
    await mine(net.chain, 1 + network.reorgDepth)
    const writeAgain = fillDisk(own.fixture.sql)
    const asked = await own.fixture.settlement.resume(payment, transfer, { waitMs: 10_000 })
    writeAgain()
    expect(asked.kind).toBe('pending')
  })

  test('an external settlement during the downtime is confirmed', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    const transfer = signTransfer(network)
    net.tap.intercept = losing
    await own.begin(transfer, { bound: true })
    await own.fixture.crash()
    const [receipt] = await execute(net.chain, [
      { from: account(8).address, ...Transfer.call(transfer), gas: 500_000n },
    ])
    net.tap.intercept = undefined
    await own.open()
    await until(async () => (await stateOf(own, transfer)) === 'confirmed')
    expect((await own.fixture.settlement.find(transfer))?.transaction).toBe(
      receipt?.transactionHash ?? '0x',
    )
    expect(await own.paid()).toBe(5_000n)
  })

  test('an authorization expires by the chain, not by our clock', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    const transfer = signTransfer(network, { validBefore: seconds() + 60n })
    net.tap.intercept = losing
    const payment = await own.begin(transfer)
    await own.fixture.crash()
    await own.open({}, { now: () => Date.now() + 120_000 })
    expect(await stateOf(own, transfer)).toBe('broadcast')
    await net.chain.rpc('evm_increaseTime', [120])
    await mine(net.chain, 1 + network.reorgDepth)
    await until(async () => (await stateOf(own, transfer)) === 'expired')
    const dead = await own.fixture.settlement.resume(payment, transfer, { waitMs: 10 })
    expect(dead).toMatchObject({
      kind: 'dead',
      reason: 'invalid_exact_evm_payload_authorization_valid_before',
    })
  })
})

describe.concurrent('the relayer', () => {
  test('an account nonce used by another program costs a new signature, not money', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    let isTaken = false
    net.tap.intercept = async ({ method }) => {
      if (!isSend(method) || isTaken) return undefined
      isTaken = true
      await execute(net.chain, [{ from: account(0).address, to: account(8).address, value: 1n }])
      return undefined
    }
    expect(await own.fixture.pay(signTransfer(network))).toMatchObject({ kind: 'confirmed' })
    expect(transactionRows(own)).toMatchObject([{ state: 'replaced' }, { state: 'mined' }])
    expect(await own.paid()).toBe(5_000n)
  })

  test('a relayer pauses when the node refuses, and continues with the same bytes', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    const transfer = signTransfer(network)
    net.tap.intercept = ({ method }) =>
      isSend(method) ? errorOf('insufficient funds for gas * price + value') : undefined
    const payment = await own.begin(transfer)
    await until(() => !own.fixture.settlement.isReady(network.id))
    expect(own.fixture.settlement.status()).toMatchObject([
      { ready: false, reason: 'the relayer cannot pay for gas' },
    ])
    expect((await own.fixture.pay(signTransfer(network))).kind).toBe('unavailable')
    net.tap.intercept = undefined
    await until(async () => (await stateOf(own, transfer)) === 'confirmed')
    await until(() => own.fixture.settlement.isReady(network.id))
    expect((await own.fixture.settlement.find(transfer))?.transaction).toBe(payment.transaction)
  })

  test('a stuck transaction is replaced at its nonce with higher fees', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    net.tap.intercept = withoutSync
    await setAutomine(net.chain, false)
    await own.reopen({ replaceAfterSeconds: 0.2 })
    const transfer = signTransfer(network)
    const paying = own.fixture.pay(transfer)
    await until(() => transactionRows(own).length > 1)
    expect((await mineWhile(net.chain, paying)).kind).toBe('confirmed')
    const rows = transactionRows(own)
    expect(new Set(rows.map(({ nonce }) => nonce)).size).toBe(1)
    expect(rows.filter(({ state }) => state === 'mined')).toHaveLength(1)
    expect(rows.filter(({ state }) => state === 'replaced')).toHaveLength(rows.length - 1)
    expect(await own.paid()).toBe(5_000n)
  })

  test('a relayer that was paused at the fee cap continues when its nonce is used', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    net.tap.intercept = withoutSync
    await setAutomine(net.chain, false)
    await own.reopen({ replaceAfterSeconds: 0.2, feeCapWei: 1_200_000_000n })
    const transfer = signTransfer(network)
    const paying = own.fixture.pay(transfer)
    await until(() => own.fixture.settlement.status()[0]?.reason?.includes('fee cap') === true)
    expect(own.fixture.settlement.isReady(network.id)).toBe(false)
    const [row] = transactionRows(own)
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
      return (await stateOf(own, transfer)) === 'confirmed'
    })
    expect((await paying).kind).toBe('confirmed')
    expect(own.fixture.settlement.isReady(network.id)).toBe(true)
    expect(await own.paid()).toBe(5_000n)
  })

  test('an expired payment is replaced by an empty transaction', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    net.tap.intercept = withoutSync
    await setAutomine(net.chain, false)
    let ahead = 0
    await own.reopen({ replaceAfterSeconds: 0.2 }, { now: () => Date.now() + ahead })
    const transfer = signTransfer(network, { validBefore: seconds() + 60n })
    const paying = own.fixture.pay(transfer)
    await until(async () => (await stateOf(own, transfer)) === 'broadcast')
    ahead = 120_000
    await net.chain.rpc('evm_increaseTime', [120])
    await until(() => transactionRows(own).some(({ kind }) => kind === 'cancel'))
    await until(async () => {
      await mine(net.chain)
      return transactionRows(own).some(({ state }) => state === 'mined' || state === 'failed')
    })
    // It is dead as soon as the blocks that were mined above its end are deep enough.
    expect(['reverted', 'dead']).toContain((await paying).kind)
    await mine(net.chain, network.reorgDepth)
    expect(await own.fixture.pay(transfer)).toMatchObject({ kind: 'dead' })
    expect(await stateOf(own, transfer)).toBe('expired')
    expect(await own.paid()).toBe(0n)
  })

  test('a payment waits for the configured confirmations', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    await own.reopen({ confirmations: 3 })
    const transfer = signTransfer(network)
    await receiptOf(net.chain, (await own.begin(transfer)).transaction)
    await mine(net.chain, 2)
    await until(async () => (await stateOf(own, transfer)) === 'confirmed')
  })

  test('a relayer continues on a chain that lost its blocks', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    const id = await net.chain.rpc('evm_snapshot', [])
    await own.fixture.pay(signTransfer(network))
    await own.fixture.pay(signTransfer(network))
    await own.fixture.crash()
    await net.chain.rpc('evm_revert', [id])
    await own.open()
    expect((await own.fixture.pay(signTransfer(network))).kind).toBe('confirmed')
  })

  test('a nonce that the chain lost is filled, so that later ones are included', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    const id = await net.chain.rpc('evm_snapshot', [])
    await own.fixture.pay(signTransfer(network))
    const transfer = signTransfer(network)
    net.tap.intercept = losing
    await own.begin(transfer)
    // Stored transactions are sent again; here another program used the nonce.
    for (const of of [
      "transaction_members WHERE transaction_hash IN (SELECT hash FROM transactions WHERE state = 'mined')",
      "transactions WHERE state = 'mined'",
      "payments WHERE state = 'confirmed'",
    ])
      own.fixture.sql.run(`DELETE FROM ${of}`)
    await own.fixture.crash()
    await net.chain.rpc('evm_revert', [id])
    net.tap.intercept = withoutSync
    await own.open()
    await until(async () => (await stateOf(own, transfer)) === 'confirmed')
    expect(own.fixture.events.some(({ event }) => event === 'nonce-gap')).toBe(true)
  })

  test('a payment bids the base fee of the simulated block', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    await own.fixture.stop()
    await own.open({}, { checkMs: 60_000 })
    await net.chain.rpc('anvil_setNextBlockBaseFeePerGas', ['0x4a817c800'])
    await mine(net.chain)
    expect((await own.fixture.pay(signTransfer(network))).kind).toBe('confirmed')
  })
})

describe.concurrent('a reorganisation', () => {
  test('a reorganisation sends the same bytes again and does not change the delivery', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    const id = await net.chain.rpc('evm_snapshot', [])
    const transfer = signTransfer(network)
    const outcome = await own.fixture.pay(transfer)
    if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
    const { settlement } = own.fixture
    await settlement.beginDelivery(outcome.payment.id)
    await settlement.endDelivery(outcome.payment.id, {
      delivered: true,
      upstreamStatus: 200,
      truncated: false,
    })
    await net.chain.rpc('evm_revert', [id])
    expect(await own.paid()).toBe(0n)
    await until(() => own.fixture.events.some(({ event }) => event === 'transaction-reorganised'))
    await until(async () => (await stateOf(own, transfer)) === 'confirmed')
    expect(await own.paid()).toBe(5_000n)
    expect(await settlement.find(transfer)).toMatchObject({
      transaction: outcome.payment.transaction,
      delivery: 'delivered',
      attempts: 1,
    })
    await until(() => transactionRows(own)[0]?.state === 'mined')
    expect(transactionRows(own)).toHaveLength(1)
  })
})

describe.concurrent('readiness', () => {
  test('readiness names the fault without the URL, and recovers', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    await own.fixture.stop()
    net.tap.intercept = () => new Response('no', { status: 503 })
    const secret = `${net.tap.url}/v2/secret-key`
    await own.open({ rpcUrls: [secret] })
    const [status] = own.fixture.settlement.status()
    expect(status).toMatchObject({ ready: false, relayer: account(0).address })
    expect(status?.reason).toContain(new URL(secret).host)
    expect(JSON.stringify([status, own.fixture.events], printBigint)).not.toContain('secret-key')
    expect((await own.fixture.pay(signTransfer(network))).kind).toBe('unavailable')
    net.tap.intercept = undefined
    await until(() => own.fixture.settlement.isReady(network.id))
    expect((await own.fixture.pay(signTransfer(network))).kind).toBe('confirmed')
  })

  test('attack: a node that repeats its URL in an error does not reveal its key', async () => {
    await using own = await ownSettlement()
    const { tap } = own.net
    const secret = `${tap.url}/v2/secret-key`
    tap.intercept = () => ({ error: { code: -32000, message: `no such project: ${secret}` } })
    await own.reopen({ rpcUrls: [secret] })
    const [status] = own.fixture.settlement.status()
    expect(status?.reason).toEndWith(`: no such project: ${tap.url}/...`)
  })

  const asset = (network: NetworkConfig, changes: Partial<NetworkConfig['asset']>) => ({
    asset: { ...network.asset, ...changes },
  })
  type Make = (own: OwnSettlement) => Promise<Partial<NetworkConfig>> | Partial<NetworkConfig>
  const wrong: [string, Make, string][] = [
    ['chain', () => ({ chainId: 1 }), 'is not chain 1'],
    [
      'signing domain',
      ({ network }) => asset(network, { eip712: { name: 'USDG', version: '1' } }),
      'DOMAIN_SEPARATOR of USDG',
    ],
    ['asset', ({ network }) => asset(network, { address: account(6).address }), 'USDG is not at'],
    [
      'balance',
      async ({ net }) => {
        await net.chain.rpc('anvil_setBalance', [account(0).address, '0x1'])
        return {}
      },
      'holds 1 wei, too little for gas',
    ],
  ]
  for (const [name, make, reason] of wrong) {
    test(`error: a wrong ${name} is not ready`, async () => {
      await using own = await ownSettlement()
      await own.reopen(await make(own))
      expect(own.fixture.settlement.isReady(own.network.id)).toBe(false)
      expect(own.fixture.settlement.status()[0]?.reason).toContain(reason)
    })
  }

  test('error: for a relayer without gas the amount to send is reported, once for each change', async () => {
    await using own = await ownSettlement()
    const { address } = account(0)
    await own.net.chain.rpc('anvil_setBalance', [address, '0x1'])
    await own.reopen({})
    const { remedy = '' } = own.fixture.settlement.status()[0] ?? {}
    expect(remedy).toMatch(
      /^send about 0\.0*[1-9]\d? ETH \([\d.e-]+ USD\) to 0x\w{40} on .+ \(eip155:\d+\)/,
    )
    const told = () => own.fixture.events.filter(({ event }) => event === 'network-not-ready')
    expect(told().map(({ fields }) => [fields?.reason, fields?.remedy])).toEqual([
      [`relayer ${address} holds 1 wei, too little for gas`, remedy],
    ])
    // The amount is enough.
    const wei = Amount.fromDecimal(/[\d.]+/.exec(remedy)?.[0] ?? '', 18)
    await own.net.chain.rpc('anvil_setBalance', [address, `0x${wei.toString(16)}`])
    await until(() => own.fixture.settlement.isReady(own.network.id))
    expect(own.fixture.settlement.status()[0]?.remedy).toBeUndefined()
  })

  test('the second URL is used when the first fails', async () => {
    await using own = await ownSettlement()
    const { net, network } = own
    await own.fixture.stop()
    const rpcUrls = ['http://127.0.0.1:1', net.chain.url]
    await own.open({ rpcUrls })
    expect((await own.fixture.pay(signTransfer(network))).kind).toBe('confirmed')
  })
})

function seconds(): bigint {
  return BigInt(Math.floor(Date.now() / 1000))
}

const printBigint = (_: string, value: unknown) =>
  typeof value === 'bigint' ? value.toString() : value
