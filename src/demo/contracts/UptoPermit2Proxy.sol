// SPDX-License-Identifier: MIT
pragma solidity ^0.8.28;

import {IERC20Permit, ISignatureTransfer} from "./ExactPermit2Proxy.sol";

/// @notice The x402UptoPermit2Proxy interface, for local chains: moves an amount that the caller
/// chooses, up to the permitted one, to the witness' payee. Only the facilitator of the witness may
/// call, because a stranger with the signature could otherwise settle the whole ceiling.
/// https://github.com/x402-foundation/x402/blob/main/specs/schemes/upto/scheme_upto_evm.md
contract UptoPermit2Proxy {
    event Settled();
    event SettledWithPermit();

    error AmountExceedsPermitted();
    error InvalidAmount();
    error InvalidDestination();
    error InvalidOwner();
    error InvalidPermit2Address();
    error PaymentTooEarly();
    error Permit2612AmountMismatch();
    error ReentrancyGuardReentrantCall();
    error UnauthorizedFacilitator();

    struct Witness {
        address to;
        address facilitator;
        uint256 validAfter;
    }

    struct EIP2612Permit {
        uint256 value;
        uint256 deadline;
        bytes32 r;
        bytes32 s;
        uint8 v;
    }

    // A constant, not an immutable: the runtime code is placed without running a constructor.
    ISignatureTransfer public constant PERMIT2 =
        ISignatureTransfer(0x000000000022D473030F116dDEE9F6B43aC78BA3);
    string public constant WITNESS_TYPE_STRING =
        "Witness witness)TokenPermissions(address token,uint256 amount)Witness(address to,address facilitator,uint256 validAfter)";
    bytes32 public constant WITNESS_TYPEHASH =
        keccak256("Witness(address to,address facilitator,uint256 validAfter)");

    bool private transient entered;

    modifier nonReentrant() {
        if (entered) revert ReentrancyGuardReentrantCall();
        entered = true;
        _;
        entered = false;
    }

    function settle(
        ISignatureTransfer.PermitTransferFrom calldata permit,
        uint256 amount,
        address owner,
        Witness calldata witness,
        bytes calldata signature
    ) external nonReentrant {
        requireAuthorized(permit, amount, witness);
        move(permit, amount, owner, witness, signature);
        emit Settled();
    }

    function settleWithPermit(
        EIP2612Permit calldata permit2612,
        ISignatureTransfer.PermitTransferFrom calldata permit,
        uint256 amount,
        address owner,
        Witness calldata witness,
        bytes calldata signature
    ) external nonReentrant {
        requireAuthorized(permit, amount, witness);
        allow(permit2612, permit.permitted, owner);
        move(permit, amount, owner, witness, signature);
        emit SettledWithPermit();
    }

    /// @dev The reference makes both checks before it looks at the EIP-2612 permit.
    function requireAuthorized(
        ISignatureTransfer.PermitTransferFrom calldata permit,
        uint256 amount,
        Witness calldata witness
    ) private view {
        if (amount > permit.permitted.amount) revert AmountExceedsPermitted();
        if (msg.sender != witness.facilitator) revert UnauthorizedFacilitator();
    }

    function allow(
        EIP2612Permit calldata permit2612,
        ISignatureTransfer.TokenPermissions calldata permitted,
        address owner
    ) private {
        if (permit2612.value != permitted.amount) revert Permit2612AmountMismatch();
        // Somebody may have sent the permit before us: what counts is the allowance in the transfer.
        try IERC20Permit(permitted.token).permit(
            owner,
            address(PERMIT2),
            permit2612.value,
            permit2612.deadline,
            permit2612.v,
            permit2612.r,
            permit2612.s
        ) {} catch {}
    }

    function move(
        ISignatureTransfer.PermitTransferFrom calldata permit,
        uint256 amount,
        address owner,
        Witness calldata witness,
        bytes calldata signature
    ) private {
        if (amount == 0) revert InvalidAmount();
        if (owner == address(0)) revert InvalidOwner();
        if (witness.to == address(0)) revert InvalidDestination();
        if (block.timestamp < witness.validAfter) revert PaymentTooEarly();
        PERMIT2.permitWitnessTransferFrom(
            permit,
            ISignatureTransfer.SignatureTransferDetails(witness.to, amount),
            owner,
            keccak256(abi.encode(WITNESS_TYPEHASH, witness.to, witness.facilitator, witness.validAfter)),
            WITNESS_TYPE_STRING,
            signature
        );
    }
}
