import type { Page } from 'playwright-core'
import type { LocalAccount } from 'viem'
import type { Chain } from '../../src/demo/chains'

/** A wallet of the browser (EIP-6963 and EIP-1193) that signs by a demo key. */
export type BrowserWallet = {
  account: LocalAccount
  /** Id of the chain that it is on. */
  chainId: number
  /** Chains that it does not know. */
  unknown: Set<number>
  /** Methods that its user refuses. */
  refused: Set<string>
  /** Methods that were asked for, in order. */
  asked: string[]
  /** Typed data that was signed. */
  signed: { primaryType: string; message: Record<string, unknown> }[]
}

type Reply = { result?: unknown; error?: { code: number; message: string } }

/**
 * Announces a wallet to every document of a page. `info` replaces members of its description; with an
 * empty `uuid` it is a wallet of EIP-1193 alone, which announces nothing.
 */
export async function installWallet(
  page: Page,
  chains: readonly Chain[],
  account: LocalAccount,
  info: Readonly<Record<string, string>> = {},
): Promise<BrowserWallet> {
  const wallet: BrowserWallet = {
    account,
    chainId: 8453,
    unknown: new Set(),
    refused: new Set(),
    asked: [],
    signed: [],
  }
  await page.exposeFunction('askWallet', (method: string, params: readonly unknown[]) =>
    answer(wallet, chains, { method, params }),
  )
  await page.addInitScript(announce, { uuid: 'a-wallet', name: 'Demo Wallet', icon: '', ...info })
  return wallet
}

/** Runs in the page. */
function announce(info: Record<string, string>): void {
  type Global = EventTarget & { askWallet(method: string, params: unknown): Promise<Reply> }
  const page = globalThis as unknown as Global
  const provider = {
    async request({ method, params }: { method: string; params?: unknown }) {
      const { result, error } = await page.askWallet(method, params ?? [])
      if (error !== undefined) throw Object.assign(new Error(error.message), { code: error.code })
      return result
    },
  }
  if (info.uuid === '') {
    Object.assign(page, { ethereum: provider })
    return
  }
  const tell = () => {
    page.dispatchEvent(new CustomEvent('eip6963:announceProvider', { detail: { info, provider } }))
  }
  page.addEventListener('eip6963:requestProvider', tell)
  tell()
}

async function answer(
  wallet: BrowserWallet,
  chains: readonly Chain[],
  { method, params }: { method: string; params: readonly unknown[] },
): Promise<Reply> {
  wallet.asked.push(method)
  if (wallet.refused.has(method)) return { error: { code: 4001, message: 'User rejected' } }
  switch (method) {
    case 'eth_requestAccounts':
      return { result: [wallet.account.address] }
    case 'eth_chainId':
      return { result: `0x${wallet.chainId.toString(16)}` }
    case 'wallet_switchEthereumChain': {
      const [{ chainId }] = params as [{ chainId: string }]
      if (wallet.unknown.has(Number(chainId)))
        return { error: { code: 4902, message: 'Unrecognized chain' } }
      wallet.chainId = Number(chainId)
      return { result: null }
    }
    case 'eth_signTypedData_v4': {
      const [, text] = params as [string, string]
      const { types, ...typed } = JSON.parse(text)
      const { EIP712Domain: _, ...own } = types
      wallet.signed.push(typed)
      return { result: await wallet.account.signTypedData({ ...typed, types: own }) }
    }
    default: {
      const chain = chains.find(({ chainId }) => chainId === wallet.chainId)
      if (chain === undefined) throw new Error(`no chain ${wallet.chainId}`)
      return { result: await chain.rpc(method, [...params]) }
    }
  }
}
