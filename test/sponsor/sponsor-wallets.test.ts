import { afterAll, afterEach, beforeAll, describe, expect, test } from 'bun:test'
import { JsonRpcProvider, Wallet } from 'ethers'
import { createWalletClient, defineChain, type Hex, http, numberToHex } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import * as Token from '../../src/chain/token'
import type { NetworkConfig } from '../../src/config/Config'
import { receiptOf } from '../../src/demo/chains'
import * as Permit from '../../src/protocol/Permit'
import { approveCall } from '../../src/sponsor/facts'
import type * as Grant from '../../src/sponsor/Grant'
import { type RpcCall, startNetwork, temporary, until } from '../harness/settlement'
import {
  age,
  baseFeeOf,
  freshWallet,
  type Sponsoring,
  setTokens,
  sponsorDefaults,
  sponsoredNetwork,
  startSponsoring,
  weiOf,
  youngAge,
} from '../harness/sponsor'

// Wallets as shipped send the approve of the answer with the granted amount, for any suggestion of the
// node. With their own default fees many reserve more than is granted.

let net: Awaited<ReturnType<typeof startNetwork>>
let network: NetworkConfig
let sponsoring: Sponsoring
const directory = temporary()
beforeAll(async () => {
  net = await startNetwork('usdg')
  network = sponsoredNetwork(net.tap.url, youngAge)
  sponsoring = await startSponsoring([network], directory.path)
})
afterAll(async () => {
  await sponsoring?.desk.stop()
  await net?.stop()
  directory.remove()
})
afterEach(() => {
  net.tap.intercept = undefined
})

/** Fee suggestions of a node for wallets. */
type Node = { tipWei: bigint; fills: 'never' | 'as geth' }

/** The fields that geth fills in: twice the base fee and its tip. */
async function fillAsGeth({ params }: RpcCall, { tipWei }: Node) {
  const request = params[0] as { from: Hex; to: Hex; data: Hex }
  const { from, to, data } = request
  const gas = await net.chain.rpc('eth_estimateGas', [{ from, to, data }])
  const nonce = await net.chain.rpc('eth_getTransactionCount', [from, 'pending'])
  const maxFeePerGas = numberToHex(2n * (await baseFeeOf(net.chain)) + tipWei)
  const tx = {
    type: '0x2',
    chainId: numberToHex(network.chainId),
    nonce,
    gas,
    maxFeePerGas,
    maxPriorityFeePerGas: numberToHex(tipWei),
    to,
    value: '0x0',
    input: data,
    accessList: [],
  }
  return { result: { raw: '0x', tx } }
}

async function behave(node: Node, baseFeeWei: bigint, of = sponsoring): Promise<void> {
  net.tap.intercept = async (call) => {
    const { method } = call
    if (method === 'eth_maxPriorityFeePerGas') return { result: numberToHex(node.tipWei) }
    if (method === 'eth_gasPrice') {
      return { result: numberToHex((await baseFeeOf(net.chain)) + node.tipWei) }
    }
    if (method !== 'eth_fillTransaction') return undefined
    if (node.fills === 'as geth') return fillAsGeth(call, node)
    return { error: { code: -32601, message: 'the method eth_fillTransaction does not exist' } }
  }
  await setBaseFee(baseFeeWei, of)
}

async function setBaseFee(wei: bigint, of = sponsoring): Promise<void> {
  await net.chain.rpc('anvil_setNextBlockBaseFeePerGas', [numberToHex(wei)])
  await net.chain.rpc('anvil_mine', ['0x1'])
  // A relayer that still bids the earlier fees would wait for the next poll.
  await until(() => of.desk.settlement.fees(network.id).baseFeeWei === wei)
  // The grant is in the next block: the fee of a chain with little traffic does not change.
  await net.chain.rpc('anvil_setNextBlockBaseFeePerGas', [numberToHex(wei)])
}

async function holder(atomic = sponsorDefaults.minBalanceAtomic) {
  const wallet = freshWallet()
  await setTokens(net.chain, network.asset.address, [wallet.address], atomic)
  await age(net.chain, youngAge.minBalanceAgeBlocks)
  return wallet
}

let clients = 0
const ask = (address: string) =>
  sponsoring.granting.grant({ address, client: `10.7.${++clients}.1` })

async function granted(address: string) {
  const result = await ask(address)
  if (result.kind !== 'granted') throw new Error(result.code)
  return result.body
}

const call = () => approveCall(network.asset.address)
const chain = () =>
  defineChain({
    id: network.chainId,
    name: 'local',
    nativeCurrency: { name: 'Ether', symbol: 'ETH', decimals: 18 },
    rpcUrls: { default: { http: [net.tap.url] } },
  })

type Send = (privateKey: Hex, approve: Grant.Approve) => Promise<Hex>
const wallets: Readonly<Record<string, Send>> = {
  viem: (privateKey, { to, data, nonce, gas, maxFeePerGas, maxPriorityFeePerGas }) =>
    createWalletClient({
      account: privateKeyToAccount(privateKey),
      chain: chain(),
      transport: http(net.tap.url),
    }).sendTransaction({
      to,
      data,
      nonce,
      gas: BigInt(gas),
      maxFeePerGas: BigInt(maxFeePerGas),
      maxPriorityFeePerGas: BigInt(maxPriorityFeePerGas),
    }),
  ethers: async (privateKey, { gas: gasLimit, ...approve }) => {
    const provider = new JsonRpcProvider(net.tap.url, network.chainId, {
      staticNetwork: true,
      // The tap reads single calls.
      batchMaxCount: 1,
    })
    try {
      const wallet = new Wallet(privateKey, provider)
      return (await wallet.sendTransaction({ ...approve, gasLimit })).hash as Hex
    } finally {
      provider.destroy()
    }
  },
}

async function isApproved(address: Hex): Promise<boolean> {
  const read = Token.allowance(network.asset.address, address, Permit.permit2Address)
  return BigInt(`${await net.chain.rpc('eth_call', [read, 'latest'])}`) > 0n
}

const gwei = (text: number) => BigInt(Math.round(text * 1e9))
const nodes: readonly [name: string, node: Node, baseFees: readonly number[]][] = [
  ['suggests no tip', { tipWei: 0n, fills: 'never' }, [0.036, 0.47]],
  ['suggests a tip', { tipWei: gwei(0.02), fills: 'never' }, [0.036, 0.3]],
  ['fills transactions in as geth', { tipWei: 0n, fills: 'as geth' }, [0.036, 0.47]],
  ['fills in with a tip', { tipWei: gwei(0.02), fills: 'as geth' }, [0.036, 0.3]],
]

describe('a grant pays for the approve', () => {
  for (const [name, node, baseFees] of nodes) {
    for (const [wallet, send] of Object.entries(wallets)) {
      test(`a grant pays for the approve of its answer that ${wallet} sends to a node that ${name}`, async () => {
        for (const baseFee of baseFees) {
          const { address, privateKey } = await holder()
          await behave(node, gwei(baseFee))
          const { approve } = await granted(address)
          const hash = await send(privateKey, approve)
          expect((await receiptOf(net.chain, hash)).status).toBe('0x1')
          expect(await isApproved(address)).toBe(true)
        }
      })
    }
  }

  for (const baseFee of [0.036, 0.97]) {
    test(`a grant pays for the approve in its answer, at ${baseFee} gwei`, async () => {
      const { address, privateKey } = await holder()
      await behave({ tipWei: 0n, fills: 'never' }, gwei(baseFee))
      const { approve, amountWei } = await granted(address)
      const { gas, maxFeePerGas, maxPriorityFeePerGas, ...rest } = approve
      expect(rest).toEqual({ ...call(), nonce: 0, chainId: network.chainId })
      expect(BigInt(gas) * BigInt(maxFeePerGas)).toBeLessThanOrEqual(BigInt(amountWei))
      const raw = await privateKeyToAccount(privateKey).signTransaction({
        type: 'eip1559',
        ...rest,
        gas: BigInt(gas),
        maxFeePerGas: BigInt(maxFeePerGas),
        maxPriorityFeePerGas: BigInt(maxPriorityFeePerGas),
      })
      const hash = (await net.chain.rpc('eth_sendRawTransaction', [raw])) as Hex
      expect((await receiptOf(net.chain, hash)).status).toBe('0x1')
    })
  }
})

describe('an address with some gas', () => {
  test('an address with the amount that viem reserves is refused, with the approve that it can send', async () => {
    const { address, privateKey } = await holder()
    await behave({ tipWei: 0n, fills: 'never' }, gwei(0.036))
    await net.chain.rpc('anvil_setBalance', [address, numberToHex(54_000n * gwei(0.0432))])
    const result = await ask(address)
    expect(result).toMatchObject({ kind: 'refused', code: 'has-gas' })
    if (result.kind !== 'refused') throw new Error('granted')
    const approve = result.members?.approve as Grant.Approve
    expect(approve).toMatchObject({ ...call(), nonce: 0 })
    expect(await wallets.viem?.(privateKey, approve)).toMatch(/^0x/)
  })

  test('an address with less than any wallet reserves gets the difference', async () => {
    const { address, privateKey } = await holder()
    await behave({ tipWei: 0n, fills: 'as geth' }, gwei(0.036))
    await net.chain.rpc('anvil_setBalance', [address, numberToHex(54_000n * gwei(0.038))])
    const { approve } = await granted(address)
    expect(await wallets.viem?.(privateKey, approve)).toMatch(/^0x/)
  })
})

// Each has a relayer object of its own over the same account: the previous one is not used any
// more.
describe('a cap', () => {
  for (const [wallet, send] of Object.entries(wallets)) {
    test(`a cap above a tip of 1 gwei pays for the approve that ${wallet} sends on anvil`, async () => {
      const own = temporary()
      const changes = { ...youngAge, minBalanceAtomic: 1_000_000n, maxGrantWei: 10n ** 15n }
      const of = await startSponsoring([sponsoredNetwork(net.tap.url, changes)], own.path)
      try {
        const { address, privateKey } = await holder(1_000_000n)
        await setBaseFee(gwei(0.036), of)
        const result = await of.granting.grant({ address, client: '10.8.1.1' })
        if (result.kind !== 'granted') throw new Error(result.code)
        const hash = await send(privateKey, result.body.approve)
        expect((await receiptOf(net.chain, hash)).status).toBe('0x1')
      } finally {
        await of.desk.stop()
        own.remove()
      }
    })
  }

  test('a cap below the reserve of wallets still pays for the approve in the answer', async () => {
    const own = temporary()
    const small = { ...youngAge, minBalanceAtomic: 100_000n, maxGrantWei: 25_000_000_000_000n }
    const of = await startSponsoring([sponsoredNetwork(net.tap.url, small)], own.path)
    try {
      const { address, privateKey } = await holder(100_000n)
      await behave({ tipWei: 0n, fills: 'never' }, gwei(0.4), of)
      const result = await of.granting.grant({ address, client: '10.8.1.1' })
      if (result.kind !== 'granted') throw new Error(result.code)
      const { amountWei, approve } = result.body
      expect(amountWei).toBe('25000000000000')
      const { gas, maxFeePerGas, maxPriorityFeePerGas, ...rest } = approve
      const fees = { maxFeePerGas: BigInt(maxFeePerGas), gas: BigInt(gas) }
      const maxTip = { maxPriorityFeePerGas: BigInt(maxPriorityFeePerGas) }
      const raw = await privateKeyToAccount(privateKey).signTransaction({
        type: 'eip1559',
        ...rest,
        ...fees,
        ...maxTip,
      })
      const hash = (await net.chain.rpc('eth_sendRawTransaction', [raw])) as Hex
      expect((await receiptOf(net.chain, hash)).status).toBe('0x1')
      // At 0.43 gwei it would pay for an approve only if no block had a higher fee: the grant would
      // be lost.
      const other = await holder(100_000n)
      await setBaseFee(gwei(0.43), of)
      const refused = await of.granting.grant({ address: other.address, client: '10.8.2.1' })
      expect(refused).toMatchObject({ kind: 'refused', code: 'not-ready', retryAfterSeconds: 60 })
      expect(of.rows()).toHaveLength(1)
      expect(await weiOf(net.chain, other.address)).toBe(0n)
    } finally {
      await of.desk.stop()
      own.remove()
    }
  })
})
