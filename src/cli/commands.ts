import type { Command, Context } from './Command'

const config = { value: 'FILE', help: 'configuration (default: merchants.toml)' }
const data = { value: 'DIR', help: 'data directory (default: ./data)' }

const domain = {
  value: 'NAME',
  help: 'HTTPS by itself for this DNS name; several: repeat it',
  isList: true,
}

/** Every command by its name, in the order of the help. Add a command here, and to `runs`. */
export const commands = {
  init: {
    summary: 'write a merchants.toml that sells one API, from a few answers',
    details: `It asks on the terminal for what the options leave open, and overwrites nothing. With
--openapi each operation of a specification becomes a route. A PATTERN is the id, the path, or the
method and path of operations, with * for any text; the last that fits counts.`,
    options: {
      upstream: { value: 'URL', help: 'the API that is sold' },
      openapi: { value: 'FILE', help: 'its OpenAPI 3 or Swagger 2 specification; or a URL' },
      title: { value: 'NAME', help: 'name of the service on its pages' },
      price: { value: 'USD', help: 'price of a request, such as 0.01' },
      'price-for': {
        value: 'PATTERN=USD',
        help: 'another price for some operations; several: repeat it',
        isList: true,
      },
      networks: { value: 'LIST', help: 'base, robinhood, base-sepolia; with commas' },
      payout: { value: 'ADDRESS', help: 'the wallet that is paid' },
      rpc: {
        value: 'URL',
        help: 'node of the network (default: public ones), such as a local chain',
      },
      listen: { value: 'HOST:PORT', help: 'where it listens (default: 127.0.0.1:4020)' },
      config: { value: 'FILE', help: 'where it is written (default: merchants.toml)' },
    },
    examples: [
      'init',
      'init --upstream https://api.example.com --price 0.01 --networks base,robinhood --payout 0x...',
      `init --openapi openapi.yaml --price 0.01 --price-for 'POST /images/*=0.05'`,
    ],
  },
  serve: {
    handlesOutput: true,
    summary: 'serve merchants.toml (the default command); SIGHUP reads it again',
    details: `With --domain it gets a certificate of letsencrypt.org, whose terms you agree to, and listens
on the ports 443 and 80 of every address. listen of the file is not used then.`,
    options: {
      config,
      data,
      domain,
      'https-port': { value: 'PORT', help: 'port of HTTPS, if 443 is forwarded to it' },
      'http-port': { value: 'PORT', help: 'port of HTTP, if 80 is forwarded to it' },
      'accept-loss': { help: 'once, after a failover of DATABASE_URL that lost payments' },
    },
    examples: [
      'serve',
      'serve --config shop.toml --data /var/lib/turnpike',
      'serve --domain api.example.com',
    ],
  },
  check: {
    summary: 'validate merchants.toml: every fault with its file and line',
    options: {
      config,
      data,
      domain: { ...domain, help: 'check the file for serve --domain NAME' },
      online: { help: 'ask every chain, contract, pool and upstream too' },
      openapi: { value: 'FILE', help: 'compare the routes with this specification; or a URL' },
    },
    examples: ['check', 'check --online'],
  },
  demo: {
    summary: 'local chains, sample upstreams and the gateway, without keys',
    options: {
      config: { value: 'FILE', help: 'configuration (default: the samples that ship)' },
      once: { help: 'buy with every stock client, show what happened, exit' },
    },
    examples: ['demo', 'demo --once'],
  },
  pay: {
    summary: 'buy one request with the private key in PAY_KEY',
    details: 'The body of the answer goes to stdout, everything else to stderr.',
    operands: ['a URL'],
    options: {
      protocol: { value: 'NAME', help: 'mpp or x402 (default: the first that is offered)' },
      scheme: {
        value: 'NAME',
        help: 'exact: the price before the answer (the default); upto: by use; channel: from a deposit',
      },
      deposit: { value: 'AMOUNT', help: 'by channel: deposit these dollars when too few are left' },
      network: { value: 'NAME', help: 'only on this network: base, robinhood, or eip155:8453' },
      transfer: { value: 'NAME', help: 'only by eip3009 or permit2' },
      method: { value: 'NAME', help: 'HTTP method (default: GET, with --body POST)' },
      body: { value: 'TEXT', help: 'request body' },
      key: { value: 'HEX', help: 'private key (better: PAY_KEY in the environment)' },
      max: { value: 'AMOUNT', help: 'sign at most these dollars; without it a cent, or ask' },
      'dry-run': { help: 'show what would be paid, and sign nothing' },
      rpc: { value: 'URL', help: 'node of the network (default: a public one)' },
      redeem: { value: 'TOKEN', help: 'ask again for what was paid for, without a payment' },
      'sign-in-only': { help: 'never pay: use only a pass, a trial, or what was paid for' },
      'no-sign-in': { help: 'pay, also where the wallet has a pass or a trial' },
    },
    examples: [
      'pay https://api.example.com/m/weather/forecast?latitude=52.5 --max 0.01',
      `pay https://api.example.com/m/assistant/chat --scheme upto --max 0.05 --body '{"messages":[]}'`,
    ],
  },
  channels: {
    summary: 'payment channels of a wallet: what is left, and how to get it back',
    details: `It lists the channels that pay and mcp opened, with what their chains show. The key is in PAY_KEY.
close ID  ask the merchant for what is left; ID may be its beginning, or left out for the only one`,
    operands: [],
    verbs: { close: ['[the id of a channel]'] },
    options: {
      amount: { value: 'AMOUNT', help: 'close: only these dollars' },
      withdraw: {
        help: 'close: without the merchant; the wallet pays gas, and again after the delay',
      },
      json: { help: 'JSON, with amounts as strings' },
      rpc: { value: 'URL', help: 'node of the network (default: public ones)' },
      state: {
        value: 'FILE',
        help: 'of mcp, beside which they are (default: ~/.local/state/turnpike/mcp.sqlite)',
      },
    },
    examples: ['channels', 'channels close', 'channels close 0x48a7 --withdraw'],
  },
  mcp: {
    handlesOutput: true,
    summary: 'the tools of a gateway for an MCP client, paid within limits',
    details: `An MCP server on stdio for any client. It pays with the private key in PAY_KEY, or in the file
that PAY_KEY_FILE names. Amounts are dollars.`,
    operands: ['a URL'],
    options: {
      'max-per-call': { value: 'AMOUNT', help: 'the most to sign for one call' },
      'max-per-day': { value: 'AMOUNT', help: 'the most to sign in a day of UTC' },
      state: {
        value: 'FILE',
        help: 'what was signed (default: ~/.local/state/turnpike/mcp.sqlite)',
      },
      deposit: { value: 'AMOUNT', help: 'the most for a payment channel (default: max-per-call)' },
      scheme: {
        value: 'NAME',
        help: 'exact, upto, channel (default: a channel where --deposit allows it, else exact)',
      },
      network: { value: 'NAME', help: 'only on this network: base, robinhood, or eip155:8453' },
      rpc: { value: 'URL', help: 'node for balances and payments (default: public ones)' },
    },
    examples: ['mcp https://api.example.com --max-per-call 0.05 --max-per-day 2'],
  },
  receipt: {
    summary: 'check a receipt against the key of the service that signed it',
    details: `RECEIPT is the value of Payment-Receipt or PAYMENT-RESPONSE, a file with one, or - for stdin.
Name the key by --key or --url.`,
    verbs: { verify: ['a receipt'] },
    options: {
      key: { value: 'ADDRESS', help: 'address of the receipt key' },
      url: { value: 'URL', help: 'service that publishes its receipt key' },
      request: { value: 'URL', help: 'the request that it must be for, with its query' },
      method: { value: 'METHOD', help: 'of that request; GET by default' },
      body: { value: 'TEXT', help: 'of that request; @FILE reads a file' },
    },
    examples: ['receipt verify receipt.txt --url https://api.example.com'],
  },
  sales: {
    summary: 'what was paid, delivered and spent on gas; serve may be running',
    details: `TIME is 30d (from midnight UTC), 24h, 2026-11-20, 2026-11-20T08:00Z or a Unix time.
NAME is merchant, route, payer, network or day (UTC); with --funnel route, merchant,
client (its kind) or day.`,
    options: {
      since: { value: 'TIME', help: 'begin of the period (default: 30d)' },
      by: { value: 'NAME', help: 'how to group (default: merchant; route)' },
      funnel: { help: 'answers 402, tries, why they were refused, payments, buyers' },
      csv: { help: 'comma-separated values with a header' },
      json: { help: 'JSON, with amounts as strings' },
      data,
    },
    examples: [
      'sales',
      'sales --since 7d --by day',
      'sales --funnel --by client',
      'sales --since 2026-11-01 --csv',
    ],
  },
  orders: {
    summary: 'orders of the stock desk: those that are held first',
    details: `list      the held ones first, then the unfinished and the newest
show ID   one order with every transaction of it
retry ID  continue a held order; serve may be running`,
    verbs: { list: [], show: ['the id of an order'], retry: ['the id of an order'] },
    options: { data },
    examples: ['orders list', 'orders retry 01a4'],
  },
  refund: {
    summary: 'send the money of a payment back, or list the refunds',
    details: `It writes the request into the database, and the running service sends it from the account of
REFUND_KEY, once for each payment. It needs REFUND_KEY and the file of the service.
list  the newest refunds, with their states`,
    verbs: { list: [] },
    operands: ['a payment'],
    options: {
      amount: { value: 'AMOUNT', help: 'a part of the payment (default: the whole)' },
      note: { value: 'TEXT', help: 'why, for yourself: up to 200 characters' },
      retry: { help: 'send a refund again that has failed' },
      json: { help: 'JSON, with amounts as strings' },
      config,
      data,
    },
    examples: ['refund pay_019ad2f1 --amount 0.5', 'refund pay_019ad2f1 --retry', 'refund list'],
  },
  webhooks: {
    summary: 'messages to webhooks: those that wait, failed and were sent last',
    details: `list       waiting, failed and delivered ones with attempts and the last status
resend ID  send one again, with the same webhook-id; serve may be running`,
    verbs: { list: [], resend: ['the id of a message'] },
    options: { data },
    examples: ['webhooks list', 'webhooks resend evt_4f0c'],
  },
  alerts: {
    summary: 'send a test alert to every place of [[alerts]]',
    details: 'It prints what became of each. The exit code is 1 when one of them failed.',
    verbs: { test: [] },
    options: { config },
    examples: ['alerts test', 'alerts test --config shop.toml'],
  },
  gateways: {
    summary: 'gateways that share a PostgreSQL, with the relayers of each',
    details: `Each gateway with its host, version, hash of the configuration and last sign of life. Then each
relayer on each network, and the network's other duties (keeper), with the gateway that has it.
It needs DATABASE_URL.`,
    options: { json: { help: 'JSON, with times in milliseconds' } },
    examples: ['gateways', 'gateways --json'],
  },
  meter: {
    summary: 'what a stored answer of a route with a meter costs',
    operands: ['a file'],
    options: {
      config,
      route: { value: 'NAME', help: 'MERCHANT/ROUTE, e.g. assistant/chat' },
      request: {
        value: 'FILE',
        help: 'the request body (default: any, at the price of the route)',
      },
    },
    examples: ['meter answer.json --route assistant/chat --request request.json'],
  },
  backup: {
    summary: 'consistent copy of the live database; serve may be running',
    operands: ['a file'],
    options: { data },
    examples: ['backup /var/backups/turnpike.sqlite'],
  },
  move: {
    summary: 'copy a stopped service into the PostgreSQL of DATABASE_URL',
    details: `The database must be empty. All rows are copied in one transaction and compared. The data
directory can then be used with DATABASE_URL only.`,
    options: { data },
    examples: ['move', 'move --data /var/lib/turnpike'],
  },
  health: {
    summary: 'ask the running service whether it can sell: exit code 0 or 1',
    details: 'For the health check of a container, which has no curl.',
    options: {
      config,
      url: { value: 'URL', help: 'base URL of the service (default: listen of the file)' },
    },
    examples: ['health', 'health --url https://api.example.com'],
  },
  service: {
    summary: 'print a hardened systemd unit for this program',
    details: `It names this executable, the configuration and the data directory. The unit runs under an
account that exists only while it runs, or under the one that --user names.`,
    options: {
      config,
      data: { value: 'DIR', help: 'data directory (default: /var/lib/turnpike)' },
      user: { value: 'NAME', help: 'account of this machine that owns the data directory' },
      domain: { ...domain, help: 'for serve --domain: HTTPS by itself, on ports 80 and 443' },
    },
    examples: [
      'service --config /etc/turnpike/merchants.toml > /etc/systemd/system/turnpike.service',
      'service --config /etc/turnpike/merchants.toml --domain api.example.com',
    ],
  },
  completion: {
    summary: 'print the completion script of a shell',
    details: `bash  in ~/.bashrc: source <(turnpike completion bash)
zsh   in ~/.zshrc, after compinit: source <(turnpike completion zsh)
fish  turnpike completion fish > ~/.config/fish/completions/turnpike.fish`,
    verbs: { bash: [], zsh: [], fish: [] },
    options: {},
    examples: ['completion bash', 'completion fish'],
  },
  version: {
    summary: 'print the version and the commit it was built from',
    options: { json: { help: 'as one line of JSON, with the runtime and the platform' } },
    examples: ['version', 'version --json'],
  },
} as const satisfies Readonly<Record<string, Command>>

/** The options of a command and what it works with. */
export type Run<Name extends keyof typeof commands> = Context & {
  readonly [Option in keyof (typeof commands)[Name]['options']]?:
    | ((typeof commands)[Name]['options'][Option] extends { value: string } ? string : boolean)
    | undefined
}
