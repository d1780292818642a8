import { afterAll, afterEach, beforeEach, describe, expect, test } from 'bun:test'
import {
  type Address,
  concat,
  encodeAbiParameters,
  encodeDeployData,
  encodeFunctionData,
  getContractAddress,
  type Hex,
  parseAbi,
  parseAbiParameters,
  parseTransaction,
} from 'viem'
import { account } from '../../src/demo/accounts'
import { balanceOf, execute } from '../../src/demo/chains'
import type * as Transfer from '../../src/protocol/Transfer'
import {
  networkOf,
  payee,
  type SettlementFixture,
  signTransfer,
  startFixture,
  startNetwork,
  temporary,
} from '../harness/settlement'
import * as Wallets from '../harness/wallets'

const net = await startNetwork('usdg')
const network = networkOf(net.tap.url, 'usdg')
/** anvil's deployer: its calls are a salt and creation code. */
const factory: Address = '0x4e59b44847b379578588920cA78FbF26c0B4956C'
let directory: ReturnType<typeof temporary>
let fixture: SettlementFixture
let salts = 0n
let offsetMs = 0

beforeEach(() => {
  offsetMs = 0
  directory = temporary()
  net.tap.calls.length = 0
})

afterEach(async () => {
  await fixture.stop()
  directory.remove()
})

afterAll(() => net.stop())

const open = async (walletFactories: readonly Address[]) => {
  fixture = await startFixture([network], directory.path, {
    walletFactories,
    now: () => Date.now() + offsetMs,
  })
}

/** A wallet of account 1 that is not deployed, with money. */
async function counterfactual(): Promise<{ address: Address; data: Hex }> {
  const { abi, bytecode } = Wallets.SmartWallet
  const code = encodeDeployData({ abi, bytecode, args: [account(1).address] })
  const salt = `0x${(++salts).toString(16).padStart(64, '0')}` as const
  const address = getContractAddress({ opcode: 'CREATE2', from: factory, salt, bytecode: code })
  await execute(net.chain, [
    {
      from: account(9).address,
      to: network.asset.address,
      data: encodeFunctionData({
        abi: parseAbi(['function mint(address to, uint256 value)']),
        args: [address, 1_000_000n],
      }),
      gas: 200_000n,
    },
  ])
  return { address, data: concat([salt, code]) }
}

/** The transfer with its signature in an ERC-6492 wrapper. */
function wrap(transfer: Transfer.Transfer, to: Address, data: Hex): Transfer.Transfer {
  const { signature } = transfer
  const wrapped = encodeAbiParameters(parseAbiParameters('address, bytes, bytes'), [
    to,
    data,
    signature,
  ])
  return { ...transfer, signature: concat([wrapped, `0x${'6492'.repeat(16)}`]) }
}

const transactions = () =>
  fixture.sql
    .query<{ raw: `0x02${string}`; state: string }, []>('SELECT raw, state FROM transactions')
    .all()
const codeOf = (address: Address) => net.chain.rpc('eth_getCode', [address, 'latest'])
const callsTo = (address: Address) =>
  net.tap.calls.filter(({ params }) =>
    JSON.stringify(params).toLowerCase().includes(address.slice(2).toLowerCase()),
  ).length

describe('a wallet that is not deployed', () => {
  const notAllowed = { kind: 'refused', reason: 'eip6492_factory_not_allowed' }

  test('error: a wallet that is not deployed is refused by default, and its factory is not called', async () => {
    await open([])
    const { address, data } = await counterfactual()
    const transfer = wrap(signTransfer(network, { payer: address }), factory, data)
    expect(await fixture.pay(transfer)).toMatchObject(notAllowed)
    expect(await fixture.settlement.verify(transfer)).toMatchObject(notAllowed)
    expect(callsTo(factory)).toBe(0)
    expect(transactions()).toEqual([])
    expect(await fixture.settlement.find(transfer)).toBeUndefined()
  })

  test('error: a wallet that is not deployed is refused when its factory is not the listed one', async () => {
    await open([factory])
    const { address, data } = await counterfactual()
    const bare = signTransfer(network, { payer: address })
    for (const other of [network.asset.address, account(8).address]) {
      expect(await fixture.pay(wrap(bare, other, data))).toMatchObject(notAllowed)
      expect(await fixture.settlement.verify(wrap(bare, other, data))).toMatchObject(notAllowed)
    }
    expect(transactions()).toEqual([])
  })

  test('a wallet is deployed by Multicall3 in its first payment when its factory is listed', async () => {
    await open([factory.toLowerCase() as Address])
    const { address, data } = await counterfactual()
    const transfer = wrap(signTransfer(network, { payer: address }), factory, data)
    const before = await balanceOf(net.chain, network.asset.address, payee)
    expect(await fixture.settlement.verify(transfer)).toEqual({ ok: true })
    expect(await codeOf(address)).toBe('0x')
    expect((await fixture.pay(transfer)).kind).toBe('confirmed')
    expect(await codeOf(address)).not.toBe('0x')
    // The same wrapper again: the wallet exists and nothing is deployed.
    const second = wrap(signTransfer(network, { payer: address }), factory, data)
    expect(await fixture.settlement.verify(second)).toEqual({ ok: true })
    expect((await fixture.pay(second)).kind).toBe('confirmed')
    expect(await balanceOf(net.chain, network.asset.address, payee)).toBe(before + 10_000n)
    const [first, next] = transactions().map(({ raw }) => parseTransaction(raw))
    expect(first?.to).toBe('0xca11bde05977b3631167028862be2a173976ca11')
    expect(first?.gas).toBeLessThanOrEqual(1_600_000n)
    expect(next?.to).toBe(network.asset.address.toLowerCase() as Address)
  })

  test('error: a wallet that its factory does not deploy, or whose owner did not sign, costs nothing', async () => {
    await open([factory])
    const { address, data } = await counterfactual()
    const other = await counterfactual()
    const faults = [
      wrap(signTransfer(network, { payer: address }), factory, other.data),
      wrap(signTransfer(network, { payer: address }), factory, '0x'),
      wrap(signTransfer(network, { payer: address, from: 2 }), factory, data),
    ]
    for (const transfer of faults) {
      const refused = { kind: 'refused', reason: 'invalid_exact_evm_signature' }
      expect(await fixture.pay(transfer)).toMatchObject(refused)
      expect(await fixture.settlement.verify(transfer)).toMatchObject(refused)
    }
    expect(transactions()).toEqual([])
  })

  test('a wallet that another account deploys first still pays', async () => {
    await open([factory])
    const { address, data } = await counterfactual()
    const transfer = wrap(signTransfer(network, { payer: address }), factory, data)
    let isDeployed = false
    net.tap.intercept = async ({ method }) => {
      if (!method.startsWith('eth_sendRaw') || isDeployed) return undefined
      isDeployed = true
      await execute(net.chain, [{ from: account(8).address, to: factory, data, gas: 2_000_000n }])
      return undefined
    }
    let outcome = await fixture.pay(transfer)
    net.tap.intercept = undefined
    // The one allowed failure of a wallet that never paid.
    if (outcome.kind === 'reverted') {
      expect(await fixture.pay(transfer)).toMatchObject({ kind: 'unavailable' })
      offsetMs = 120_000
      outcome = await fixture.pay(transfer)
    }
    expect(outcome.kind).toBe('confirmed')
  })
})

test('the inner signature counts for a wallet that is deployed', async () => {
  await open([])
  const { address, data } = await counterfactual()
  await execute(net.chain, [{ from: account(8).address, to: factory, data, gas: 2_000_000n }])
  const good = wrap(signTransfer(network, { payer: address }), factory, data)
  const bad = wrap(signTransfer(network, { payer: address, from: 2 }), factory, data)
  expect(await fixture.settlement.verify(good)).toEqual({ ok: true })
  expect((await fixture.pay(good)).kind).toBe('confirmed')
  expect(await fixture.pay(bad)).toMatchObject({
    kind: 'refused',
    reason: 'invalid_exact_evm_signature',
  })
  expect(callsTo(factory)).toBe(0)
})

test('a wallet that signed and cannot pay is told why, and only its failure costs a second call', async () => {
  await open([])
  const { address, data } = await counterfactual()
  await execute(net.chain, [{ from: account(8).address, to: factory, data, gas: 2_000_000n }])
  const verify = async (transfer: Transfer.Transfer) => {
    net.tap.calls.length = 0
    const verdict = await fixture.settlement.verify(transfer)
    return { verdict, calls: net.tap.calls.filter(({ method }) => method === 'eth_call').length }
  }
  const above = { payer: address, amountAtomic: 2_000_000n }
  expect(await verify(signTransfer(network, above))).toMatchObject({
    verdict: { kind: 'refused', reason: 'invalid_exact_evm_insufficient_balance' },
    calls: 2,
  })
  expect(await verify(signTransfer(network, { ...above, from: 2 }))).toMatchObject({
    verdict: { kind: 'refused', reason: 'invalid_exact_evm_signature' },
    calls: 2,
  })
  // An account without code has no contract that could accept the signature.
  const { address: payer } = account(3)
  expect(await verify(signTransfer(network, { payer, from: 2 }))).toMatchObject({
    verdict: { kind: 'refused', reason: 'invalid_exact_evm_signature' },
    calls: 1,
  })
})
