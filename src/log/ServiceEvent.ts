import type { EventText } from './EventText'

/** Events of the process, its networks, nodes and upstreams. */
export const serviceEvents = {
  'database-migrated': {
    level: 'info',
    meaning:
      'The start brought a database of an earlier version up to date: `applied` names the ' +
      'migrations, `backup` the copy from before.',
  },
  stopping: {
    level: 'info',
    meaning: 'A signal ends the service; paid requests have `limitSeconds` to finish.',
  },
  reloaded: { level: 'info', meaning: 'The changed file is in force.' },
  'reload-refused': {
    level: 'error',
    meaning: 'The changed file has faults or needs a restart. The file before it stays in force.',
    action: 'Correct each place of `faults`, run `turnpike check`, and send SIGHUP again.',
  },
  'base-url-local': {
    level: 'warn',
    meaning:
      '`base_url` is on this machine, and a request named another `host`. It is logged once, and ' +
      'clients can invent it.',
    action: 'If the service is public, set `base_url` to its address: offers and pages name it.',
  },
  'request-failed': {
    level: 'error',
    meaning: 'A request ended with an unexpected error. Its client got 500 with the request id.',
    action: 'If `error` names the disk or a node, repair that. Otherwise report it as a bug.',
  },
  'mcp-failed': {
    level: 'error',
    meaning: 'A message at `/mcp` ended with an unexpected error.',
    action: 'The same as for `request-failed`.',
  },
  'storage-fault': {
    level: 'error',
    meaning: 'The database cannot be read or written. Nothing is sold until it can.',
    action:
      'Free the disk, or make `file` writable: the service continues by itself. If the file is ' +
      'damaged, restore a backup.',
  },
  'storage-recovered': { level: 'info', meaning: 'The database can be written again.' },
  'connections-full': {
    level: 'warn',
    meaning: 'Idle connections of clients are ended because too many are open.',
    action: 'If it lasts: raise the limit of open files and `connections_max`, or limit clients.',
  },
  'listen-failed': {
    level: 'error',
    meaning: 'Connections of clients could not be managed.',
    action: 'If it repeats, restart the service and report the error as a bug.',
  },
  'log-lines-dropped': {
    level: 'warn',
    meaning: 'The log was not read for a while: `missing` lines are lost.',
    action: 'Let the program that reads stdout keep up.',
  },
  'upstream-accepts': {
    level: 'info',
    meaning: 'The upstream takes our own request again, and the route sells.',
  },
  'upstream-failed': {
    level: 'warn',
    meaning: 'An upstream did not answer a paid request. Its buyer can redeem.',
    action:
      '`kind` says why: `connect`, `refused-address` (a private address), `timeout` or `cut`. ' +
      'Compare with `turnpike check --online`.',
  },
  'upstream-refuses': {
    level: 'error',
    meaning:
      'The upstream refused paid requests, and then our own with `status`. The route sells nothing ' +
      'until our own request passes.',
    action: 'Correct the key of the merchant and load the file again.',
  },
  'network-ready': { level: 'info', meaning: 'A relayer can settle on its network.' },
  'network-not-ready': {
    level: 'warn',
    meaning:
      'A relayer cannot settle now; `reason` says why and `remedy` what to do, such as the amount ' +
      'of gas to send.',
    action: 'See "Why a relayer or a network is paused" in docs/troubleshooting.md.',
  },
  'lane-taken': {
    level: 'info',
    meaning: 'With several gateways: this one has taken an account on a network.',
  },
  'lane-given': {
    level: 'info',
    meaning: 'This gateway leaves an account on a network to another one.',
  },
  'gateway-joined': {
    level: 'info',
    meaning: 'The process serves as one of several gateways over a database.',
  },
  'gateway-reaped': {
    level: 'warn',
    meaning: 'Another gateway gave no sign for ten seconds: its accounts are taken over.',
    action: 'Look at the log of that gateway, and at its connection to the database.',
  },
  'gateway-fenced': {
    level: 'error',
    meaning: 'The other gateways took this one for dead: it ends, and sends nothing more.',
    action: 'Let it be restarted. If it repeats, look for pauses of the machine or of the network.',
  },
  'database-went-back': {
    level: 'error',
    meaning:
      'After a failover the database lacks commits that it had acknowledged: every gateway ends.',
    action:
      'Compare the payments before the failover with the chain, then start once with `--accept-loss`. Use a synchronous standby.',
  },
  'block-number-taken-back': {
    level: 'warn',
    meaning: 'A node named a newest block that the next checks do not confirm.',
    action: 'If it repeats, replace the node.',
  },
  'rpc-fault': {
    level: 'warn',
    meaning: 'A call to a node got no usable answer. Logged once until the node answers again.',
    action: 'If it lasts, see the page of the provider, or add another URL to `rpc_urls`.',
  },
  'rpc-recovered': { level: 'info', meaning: 'The node answers again.' },
  'heads-live': { level: 'info', meaning: 'The WebSocket announces new blocks.' },
  'heads-lost': {
    level: 'warn',
    meaning: 'The WebSocket ended. Receipts are polled until it is open again.',
    action: 'If it repeats, replace `ws_url`.',
  },
  'facilitator-settle': {
    level: 'info',
    meaning: 'The facilitator answered a `/settle`; `answer` is the result.',
  },
  'grant-lost': {
    level: 'error',
    meaning:
      'A grant failed on chain, as for an address that delegates to code meanwhile, or another ' +
      'transaction used its nonce.',
    action: 'Use the relayer key in this service only.',
  },
  'approves-missing': {
    level: 'warn',
    meaning:
      'Signed approves that were funded do not arrive: no more are funded on this day (UTC).',
    action:
      'Nothing: payers can request grants. Payers may have taken the coin for something else.',
  },
  'admin-signed-in': { level: 'info', meaning: 'An operator signed in at `/admin`.' },
  'admin-signed-out': {
    level: 'info',
    meaning: 'An operator signed out at `/admin`; `everywhere`: all sessions ended.',
  },
  'admin-action': {
    level: 'info',
    meaning:
      'An operator did `action` at `/admin`: `pause`, `resume`, `retry`, `reload` or `backup`. `ok` ' +
      'and `result` say how it ended.',
  },
  'sales-paused': {
    level: 'warn',
    meaning: 'The start found a merchant or a network whose sales an operator has paused.',
    action: 'Resume it at `/admin` to sell it again.',
  },
  'admin-refused': {
    level: 'warn',
    meaning:
      'A sign-in or a form at `/admin` was refused; `reason` is `wrong-token`, `no-tls`, `origin` ' +
      'or `csrf`.',
    action: 'If you did not do this, change `ADMIN_TOKEN`, and limit who reaches `/admin`.',
  },
} as const satisfies Readonly<Record<string, EventText>>
